# Prints the code of Rust files as FILE:LINE: without comments, blank lines, and what only tests or models have.

# Counts how many more braces and parentheses a line opens than it closes.
function depth_of(line) {
  gsub(/'[{}()\[\]]'/, "", line)
  gsub(/"([^"\\]|\\.)*"/, "", line)
  return gsub(/[{(\[]/, "", line) - gsub(/[})\]]/, "", line)
}
FNR == 1 { is_gated = 0; depth = 0 }
/^[[:space:]]*(\/\/.*)?$/ { next }
/^[[:space:]]*#\[cfg\((test|shuttle|all\(test, shuttle\))\)\]$/ { is_gated = 1; depth = 0; next }
is_gated {
  if (depth == 0 && $0 ~ /^[[:space:]]*#\[/) next
  depth += depth_of($0)
  # The item ends with its last bracket, or with a line such as `mod tests;`.
  if (depth == 0 && $0 ~ /[;},]$/) is_gated = 0
  next
}
{ print FILENAME ":" $0 }
