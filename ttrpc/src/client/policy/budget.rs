//! How many calls may be made again, measured by those that succeed.

use std::{fmt, sync::Arc};

use crate::{sync::Mutex, transport::lock};

/// Tokens are counted in thousandths.
const TOKEN: u64 = 1000;

/// Limits how often calls are made again while a server fails, so that retries do not add to an overload.
///
/// It is the token bucket of gRPC's retry design. It begins with `max_tokens`. An attempt takes one token if it fails with
/// one of the [`Retry`](super::Retry)'s codes and a server may have seen it. Each unary call that succeeds adds
/// `token_ratio`. Calls are made again while there are more than half of the tokens. A call's first attempt is always made.
///
/// Clones share the tokens: one budget for several policies limits them together.
#[derive(Clone)]
pub struct RetryBudget(Arc<Bucket>);

struct Bucket {
    max: u64,
    per_success: u64,
    tokens: Mutex<u64>,
}

impl RetryBudget {
    /// Makes a full budget. A ratio below 0.001 counts as that, and so does one that is no number.
    pub fn new(max_tokens: u32, token_ratio: f64) -> Self {
        let max = u64::from(max_tokens) * TOKEN;
        // What does not fit is cut, by definition of the conversion.
        let per_success = ((token_ratio * TOKEN as f64).round() as u64).max(1);
        RetryBudget(Arc::new(Bucket { max, per_success, tokens: Mutex::new(max) }))
    }

    /// Counts a call that has succeeded.
    pub(super) fn succeeded(&self) {
        let Bucket { max, per_success, tokens } = &*self.0;
        let mut tokens = lock(tokens);
        *tokens = tokens.saturating_add(*per_success).min(*max);
    }

    /// Counts an attempt that has failed. Returns whether another one may be made.
    pub(super) fn failed(&self) -> bool {
        let Bucket { max, tokens, .. } = &*self.0;
        let mut tokens = lock(tokens);
        *tokens = tokens.saturating_sub(TOKEN);
        *tokens > max / 2
    }
}

/// 100 tokens, and 0.1 for each success.
impl Default for RetryBudget {
    fn default() -> Self {
        RetryBudget::new(100, 0.1)
    }
}

impl fmt::Debug for RetryBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Bucket { max, per_success, tokens } = &*self.0;
        let [tokens, max, ratio] =
            [*lock(tokens), *max, *per_success].map(|n| n as f64 / TOKEN as f64);
        write!(f, "RetryBudget({tokens} of {max}, {ratio} for each success)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_made_again_while_more_than_half_of_the_tokens_are_left() {
        let budget = RetryBudget::new(10, 0.1);
        for _ in 0..4 {
            assert!(budget.failed());
        }
        for _ in 0..100 {
            assert!(!budget.failed());
        }
        // From none to more than half, a tenth at a time.
        for _ in 0..60 {
            budget.succeeded();
        }
        assert!(!budget.failed(), "5 of 10 are left");
        for _ in 0..11 {
            budget.clone().succeeded();
        }
        assert!(budget.failed(), "5.1 of 10 are left");
    }

    #[test]
    fn a_budget_holds_no_more_than_it_began_with() {
        let budget = RetryBudget::new(2, f64::INFINITY);
        for _ in 0..3 {
            budget.succeeded();
        }
        assert!(format!("{budget:?}").starts_with("RetryBudget(2 of 2, "));
        assert!(!budget.failed());
        let (none, slow) = (RetryBudget::new(0, 1.0), RetryBudget::new(1, f64::NAN));
        assert!(!none.failed());
        slow.failed();
        slow.succeeded();
        assert_eq!(format!("{slow:?}"), "RetryBudget(0.001 of 1, 0.001 for each success)");
    }
}
