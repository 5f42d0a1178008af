// SPDX-License-Identifier: Apache-2.0
//! What a Lark grammar from outside may use of llguidance's dialect, found before it is parsed:
//! the parser recurses, and some of what it knows would not hold here (special tokens, texts that
//! are cut away afterwards) or would open another door (schemas with options of their own).

use std::collections::HashMap;

use crate::{regex, Failure};

const SOURCE_MAX: usize = 64 << 10;
const NESTING_MAX: usize = 100;
const ANDS_WEIGHT_MAX: u32 = 20;
const DEFINITIONS_MAX: usize = 1000;
/// About 0.1 ns each.
const PREDICTIONS_MAX: usize = 5_000_000_000;
const DIRECTIVES: [&str; 3] = ["%ignore", "%import", "%regex"];

fn unsupported(line: usize, text: &str) -> Failure {
    Failure::Unsupported(format!(
        "Lark grammar, line {line}: {text} is not supported"
    ))
}

fn limit(text: String) -> Failure {
    Failure::Limit(format!("Lark grammar: {text}"))
}

/// Bytes of a quoted text from its first quote on, with the last one.
fn quoted(rest: &[u8], quote: u8) -> usize {
    let mut at = 1;
    while at < rest.len() && rest[at] != quote && rest[at] != b'\n' {
        at += if rest[at] == b'\\' { 2 } else { 1 };
    }
    (at + 1).min(rest.len())
}

fn word(rest: &[u8]) -> &str {
    let end = rest.iter().skip(1).position(|b| !b.is_ascii_alphanumeric());
    std::str::from_utf8(&rest[..end.map_or(rest.len(), |n| n + 1)]).unwrap_or("")
}

fn special(rest: &[u8]) -> bool {
    let end = rest
        .iter()
        .position(|b| *b == b'>' || b.is_ascii_whitespace());
    end.is_some_and(|n| n > 1 && rest[n] == b'>')
}

fn name(rest: &[u8]) -> &str {
    let plain = |b: &u8| b.is_ascii_alphanumeric() || *b == b'_';
    let end = rest.iter().position(|b| !plain(b)).unwrap_or(rest.len());
    std::str::from_utf8(&rest[..end]).unwrap_or("")
}

/// How often each rule is named, and how many alternatives it has. Where a rule may begin, the
/// parser adds all of its alternatives for each time that it is named there, and looks through all
/// that are there already.
#[derive(Default)]
struct Rules<'a> {
    last: &'a str,
    current: &'a str,
    named: HashMap<&'a str, usize>,
    alternatives: HashMap<&'a str, usize>,
}

impl Rules<'_> {
    fn alternative(&mut self) {
        if self
            .current
            .starts_with(|c: char| c.is_ascii_lowercase() || c == '_')
        {
            *self.alternatives.entry(self.current).or_default() += 1;
        }
    }

    fn predictions(&self) -> usize {
        let named = |rule| self.named.get(rule).copied().unwrap_or(0);
        let each = self.alternatives.iter().map(|(rule, n)| named(*rule) * n);
        let all: usize = self.alternatives.values().sum();
        each.sum::<usize>().saturating_mul(all)
    }
}

pub fn check(source: &str) -> Result<(), Failure> {
    if source.len() > SOURCE_MAX {
        return Err(limit(format!(
            "{} bytes, at most {SOURCE_MAX}",
            source.len()
        )));
    }
    let bytes = source.as_bytes();
    let (mut at, mut line, mut depth, mut nots) = (0, 1, 0usize, 0);
    let (mut definitions, mut optional, mut wide) = (0, 0, 0);
    let (mut ands, mut alternatives) = (0u32, 0usize);
    let mut rules = Rules::default();
    let mut before = b' '; // the last byte that is no blank
    while at < bytes.len() {
        let rest = &bytes[at..];
        let mut taken = 1;
        let blank = rest[0].is_ascii_whitespace();
        nots = if rest[0] == b'~' {
            nots + 1
        } else if blank {
            nots
        } else {
            0
        };
        // Alone it stands for all other bytes, also those that are no UTF-8.
        if rest[0] == b'~' && before != b'&' && before != b'~' {
            return Err(unsupported(line, "~ that does not follow &"));
        }
        if !blank {
            before = rest[0];
        }
        match rest[0] {
            b'\n' => line += 1,
            b'#' => taken = rest.iter().position(|b| *b == b'\n').unwrap_or(rest.len()),
            b'/' if rest.starts_with(b"//") => {
                taken = rest.iter().position(|b| *b == b'\n').unwrap_or(rest.len());
            }
            b'"' => taken = quoted(rest, b'"'),
            b'/' => {
                taken = quoted(rest, b'/');
                let inner = std::str::from_utf8(&rest[..taken]).unwrap_or("");
                optional += regex::optional_parts(inner);
                let flags = name(&rest[taken..]);
                wide += regex::wide_parts(inner, flags.contains('i'));
                alternatives += inner.matches('|').count();
            }
            b'*' | b'?' | b'+' => optional += 1,
            b'&' => ands += 1,
            b'|' => {
                alternatives += 1;
                rules.alternative();
            }
            b'(' | b'[' | b'{' => {
                depth += 1;
                optional += (rest[0] != b'(') as usize;
            }
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            b':' if rest.starts_with(b"::") => return Err(unsupported(line, "::")),
            b':' => {
                definitions += 1;
                rules.current = rules.last;
                rules.alternative();
            }
            b'=' => return Err(unsupported(line, "an attribute of a rule")),
            b'@' => return Err(unsupported(line, "a reference to another grammar")),
            b'<' if special(rest) => return Err(unsupported(line, "a special token")),
            b'%' if !DIRECTIVES.contains(&word(rest)) => {
                return Err(unsupported(line, &format!("{:.20}", word(rest))));
            }
            b if b.is_ascii_alphabetic() || b == b'_' => {
                rules.last = name(rest);
                taken = rules.last.len();
                *rules.named.entry(rules.last).or_default() += 1;
            }
            _ => {}
        }
        if depth > NESTING_MAX || nots > NESTING_MAX {
            return Err(limit(format!(
                "nested deeper than {NESTING_MAX}, line {line}"
            )));
        }
        if optional > 2 * regex::OPTIONAL_MAX {
            return Err(limit(format!("too many repeated parts, line {line}")));
        }
        if wide > regex::WIDE_MAX {
            return Err(limit(format!("too many classes, line {line}")));
        }
        if definitions > DEFINITIONS_MAX {
            return Err(limit(format!("more than {DEFINITIONS_MAX} definitions")));
        }
        at += taken;
    }
    if rules.predictions() > PREDICTIONS_MAX {
        return Err(limit(
            "too many alternatives of rules that name each other".into(),
        ));
    }
    // What an intersection multiplies out, see meet.rs.
    let weight = (ands + 1) * (1 + (alternatives + optional + 1).ilog2());
    if ands > 0 && weight > ANDS_WEIGHT_MAX {
        return Err(limit(format!(
            "{ands} times & among {alternatives} alternatives is too much"
        )));
    }
    Ok(())
}
