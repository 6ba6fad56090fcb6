//! Puts all mutants of a file into its text, each behind a switch.

use std::collections::BTreeMap;

use proc_macro2::{LineColumn, Span};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use crate::Mutant;

/// The module that the switches need, for the root of the crate.
pub const SWITCH: &str = include_str!("switch.rs.txt");

/// What is put into a text at one place.
struct Insertion {
    at: usize,
    /// Closings stand before openings; of openings the widest is first, of closings the narrowest.
    order: (bool, isize, isize),
    text: String,
}

struct Places<'a> {
    lines: Vec<usize>,
    text: &'a str,
    mutants: BTreeMap<(&'a str, LineColumn), Vec<&'a Mutant>>,
    insertions: Vec<Insertion>,
    replaced: Vec<(usize, usize)>,
    placed: Vec<usize>,
    unviable: Vec<usize>,
}

/// The text with a switch for each of the mutants, the numbers of those that have found their place, and
/// of those that would not compile.
pub fn instrument(text: &str, mutants: &[&Mutant]) -> (String, Vec<usize>, Vec<usize>) {
    let file = syn::parse_file(text).expect("the library parses");
    let mut lines = vec![0, 0];
    lines.extend(text.char_indices().filter(|(_, char)| *char == '\n').map(|(at, _)| at + 1));
    let mut places = Places {
        lines,
        text,
        mutants: BTreeMap::new(),
        insertions: Vec::new(),
        replaced: Vec::new(),
        placed: Vec::new(),
        unviable: Vec::new(),
    };
    for mutant in mutants {
        // What is hidden behind `impl Iterator` has one type, so that two values of it cannot stand beside each other.
        if mutant.replacement.starts_with("::std::iter::") {
            continue;
        }
        if mutant.genre == "FnValue" {
            let at = places.offset(mutant.start);
            let number = mutant.number;
            let replacement = &mutant.replacement;
            places.insert(
                at,
                (false, isize::MIN),
                format!("if crate::mutation::on({number}) {{ return /*<{number}*/ {replacement} /*{number}>*/; }} "),
            );
            places.placed.push(number);
        } else {
            places.mutants.entry((&mutant.genre, mutant.start)).or_default().push(mutant);
        }
    }
    places.visit_file(&file);
    places.finish()
}

impl<'a> Places<'a> {
    fn offset(&self, at: LineColumn) -> usize {
        let line = self.lines[at.line];
        self.text[line..]
            .char_indices()
            .nth(at.column)
            .map_or(self.text.len(), |(offset, _)| line + offset)
    }

    fn range(&self, span: Span) -> (usize, usize) {
        (self.offset(span.start()), self.offset(span.end()))
    }

    fn insert(&mut self, at: usize, (opens, width): (bool, isize), text: String) {
        // Those around the same text are made from the innermost on.
        let made = self.insertions.len() as isize;
        self.insertions.push(Insertion {
            at,
            order: (opens, width, if opens { -made } else { made }),
            text,
        });
    }

    /// Puts texts before and after a span.
    fn wrap(&mut self, (start, end): (usize, usize), before: String, after: String) {
        let width = (end - start) as isize;
        self.insert(start, (true, -width), before);
        self.insert(end, (false, width), after);
    }

    fn mutants_at(&mut self, genre: &'static str, at: LineColumn) -> Vec<&'a Mutant> {
        let found = self.mutants.remove(&(genre, at)).unwrap_or_default();
        self.placed.extend(found.iter().map(|mutant| mutant.number));
        found
    }

    fn finish(mut self) -> (String, Vec<usize>, Vec<usize>) {
        self.insertions.sort_by_key(|insertion| (insertion.at, insertion.order));
        let mut out = String::new();
        let mut done = 0;
        self.replaced.sort();
        let mut replaced = self.replaced.iter().peekable();
        let mut copy_to = |out: &mut String, to: usize| {
            while let Some((start, end)) = replaced.peek().filter(|(start, _)| *start < to) {
                out.push_str(&self.text[done..*start]);
                done = *end;
                replaced.next();
            }
            out.push_str(&self.text[done..to]);
            done = to;
        };
        for insertion in &self.insertions {
            copy_to(&mut out, insertion.at);
            out.push_str(&insertion.text);
        }
        copy_to(&mut out, self.text.len());
        (out, self.placed, self.unviable)
    }
}

fn has_let(expr: &syn::Expr) -> bool {
    match expr {
        syn::Expr::Let(_) => true,
        syn::Expr::Binary(binary) => has_let(&binary.left) || has_let(&binary.right),
        _ => false,
    }
}

impl<'ast> Visit<'ast> for Places<'_> {
    fn visit_expr_binary(&mut self, binary: &'ast syn::ExprBinary) {
        visit::visit_expr_binary(self, binary);
        if has_let(&binary.left) || has_let(&binary.right) {
            return;
        }
        let mutants = self.mutants_at("BinaryOperator", binary.op.span().start());
        if mutants.is_empty() {
            return;
        }
        let operator = self.range(binary.op.span());
        let whole = self.range(binary.span());
        let cases: String = mutants
            .iter()
            .map(|mutant| {
                let number = mutant.number;
                format!("; {number} /*<{number}*/ {} /*{number}>*/", mutant.replacement)
            })
            .collect();
        let original = &self.text[operator.0..operator.1];
        let after = format!("; {original}{cases})");
        self.wrap(whole, "crate::mutation::binary!(".to_owned(), after);
        self.replaced.push(operator);
        self.insert(operator.1, (false, isize::MAX), ";".to_owned());
    }

    fn visit_expr_unary(&mut self, unary: &'ast syn::ExprUnary) {
        visit::visit_expr_unary(self, unary);
        let mutants = self.mutants_at("UnaryOperator", unary.op.span().start());
        let Some(mutant) = mutants.first() else { return };
        let operator = self.range(unary.op.span());
        let whole = self.range(unary.span());
        let number = mutant.number;
        let original = &self.text[operator.0..operator.1];
        let before = format!("crate::mutation::unary!({number} /*<{number}*/; {original}; ");
        self.wrap(whole, before, format!(" /*{number}>*/)"));
        self.replaced.push(operator);
    }

    fn visit_expr_match(&mut self, expr: &'ast syn::ExprMatch) {
        // Without an arm that takes everything else, the rest does not compile.
        let takes_all = |arm: &syn::Arm| {
            // `None` is parsed as a name, too.
            let named = |name: &syn::PatIdent| {
                name.subpat.is_none() && name.ident.to_string().starts_with(char::is_lowercase)
            };
            arm.guard.is_none()
                && matches!(&arm.pat, syn::Pat::Wild(_))
                    | matches!(&arm.pat, syn::Pat::Ident(ident) if named(ident))
        };
        for (index, arm) in expr.arms.iter().enumerate() {
            let others = expr.arms.iter().enumerate().filter(|(other, _)| *other != index);
            if arm.guard.is_none() && !others.clone().any(|(_, other)| takes_all(other)) {
                let at = arm.span().start();
                self.unviable.extend(
                    self.mutants.remove(&("MatchArm", at)).into_iter().flatten().map(|m| m.number),
                );
            }
        }
        visit::visit_expr_match(self, expr);
    }

    fn visit_arm(&mut self, arm: &'ast syn::Arm) {
        visit::visit_arm(self, arm);
        let deleted: Vec<_> = self.mutants_at("MatchArm", arm.span().start());
        let kept: String = deleted
            .iter()
            .map(|mutant| {
                let number = mutant.number;
                format!("/*<{number}*/ !crate::mutation::on({number}) /*{number}>*/ && ")
            })
            .collect();
        let Some((_, guard)) = &arm.guard else {
            if !deleted.is_empty() {
                let end = self.range(arm.pat.span()).1;
                self.insert(end, (false, isize::MAX), format!(" if {kept} true"));
            }
            return;
        };
        let mut before = kept;
        for mutant in self.mutants_at("MatchArmGuard", guard.span().start()) {
            let number = mutant.number;
            match mutant.replacement.as_str() {
                "true" => {
                    before +=
                        &format!("(/*<{number}*/ crate::mutation::on({number}) /*{number}>*/ || ")
                }
                _ => {
                    before +=
                        &format!("(/*<{number}*/ !crate::mutation::on({number}) /*{number}>*/ && ")
                }
            }
        }
        let depth = before.matches('(').count() - before.matches("on(").count();
        if !before.is_empty() {
            self.wrap(
                self.range(guard.span()),
                format!("{before}("),
                format!("){}", ")".repeat(depth)),
            );
        }
    }

    fn visit_expr_struct(&mut self, expr: &'ast syn::ExprStruct) {
        visit::visit_expr_struct(self, expr);
        let Some(rest) = &expr.rest else { return };
        let (start, end) = self.range(rest.span());
        let base = self.text[start..end].to_owned();
        for field in &expr.fields {
            if field.colon_token.is_none() {
                continue;
            }
            let name = field.member.clone();
            let syn::Member::Named(name) = name else { continue };
            for mutant in self.mutants_at("StructField", field.span().start()) {
                let number = mutant.number;
                let before = format!(
                    "if crate::mutation::on({number}) {{ /*<{number}*/ ({base}).{name} /*{number}>*/ }} else {{ "
                );
                self.wrap(self.range(field.expr.span()), before, " }".to_owned());
            }
        }
    }
}
