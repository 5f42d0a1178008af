// SPDX-License-Identifier: Apache-2.0
//! Regular expressions from outside, in the notation that derivre reads; and what is in its way.

use llguidance::{derivre::RegexBuilder, regex_to_lark};

/// What every notation takes for a blank, and what some one does: a text must fit whichever way its
/// reader's `\s` and `\S` are.
const BLANK_ALL: &str = concat!(
    r"[\t\n\x0b\x0c\r\x20\xa0\u1680\u2000-\u200a",
    r"\u2028\u2029\u202f\u205f\u3000]"
);
const BLANK_ANY: &str = r"[\s\ufeff\x1c-\x1f\x85]";

/// A schema's pattern is ECMAScript; what follows is read by Rust's regex syntax. Where the two
/// read the same text differently it is rewritten, and refused where that is not worth it.
pub fn from_ecmascript(pattern: &str) -> Result<String, String> {
    let mut out = String::with_capacity(pattern.len() + 8);
    if wide_parts(pattern, false) > WIDE_MAX {
        return Err(format!("too many classes, at most {WIDE_MAX}"));
    }
    let mut chars = pattern.chars().peekable();
    let (mut in_class, mut negated) = (false, false);
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                None => return Err("a backslash at the end".into()),
                Some(c @ ('A' | 'z' | 'Z' | 'G' | 'K' | 'Q' | 'E' | 'a' | '<' | '>')) => {
                    return Err(format!("\\{c} means nothing in ECMAScript"));
                }
                Some('b') if in_class => out.push_str("\\x08"),
                Some('s') => out.push_str(if in_class && negated {
                    BLANK_ANY
                } else {
                    BLANK_ALL
                }),
                Some('S') if in_class && negated => out.push_str(&BLANK_ALL.replacen('[', "[^", 1)),
                Some('S') => out.push_str(&BLANK_ANY.replacen('[', "[^", 1)),
                Some(c) => {
                    out.push('\\');
                    out.push(c);
                }
            },
            '[' if in_class => out.push_str("\\["),
            '&' | '~' if in_class => {
                out.push('\\');
                out.push(c);
            }
            '-' if in_class && chars.peek() == Some(&'-') => {
                return Err("-- within [ ] is ambiguous: write \\-".into());
            }
            '[' => {
                in_class = true;
                out.push(c);
                negated = chars.peek() == Some(&'^');
                if negated {
                    out.extend(chars.next());
                }
                if chars.peek() == Some(&']') {
                    return Err("[] and [^] are not supported".into());
                }
            }
            ']' => {
                in_class = false;
                out.push(c);
            }
            '(' if !in_class && chars.peek() == Some(&'?') => {
                out.push(c);
                let rest: String = chars.clone().skip(1).take(2).collect();
                let group = rest.starts_with(':') || rest.starts_with('<');
                let look = ["=", "!", "<=", "<!"].iter().any(|l| rest.starts_with(l));
                if look {
                    return Err("look-around is not supported".into());
                }
                if !group {
                    return Err(format!("(?{} is no group of ECMAScript", rest));
                }
            }
            '.' if !in_class => out.push_str(r"[^\n\r\u2028\u2029]"),
            c => out.push(c),
        }
    }
    check(&out, true)?;
    Ok(out)
}

/// Parts that may be empty. A step of derivre over a row of n such parts takes n * n time and
/// memory before it looks at its limits: 0.1 s for 1,000.
pub const OPTIONAL_MAX: usize = 1000;

pub fn optional_parts(regex: &str) -> usize {
    let quantifiers = regex.bytes().filter(|b| b"*?+{".contains(b)).count();
    let empty = ["(|", "||", "|)"].map(|e| regex.matches(e).count());
    quantifiers + empty.iter().sum::<usize>()
}

/// Classes of hundreds of ranges, each of which is written out when the text is parsed: 5 KB. Where
/// case is ignored each character of a class is looked up, up to 3 ms for one: they count more.
pub const WIDE_MAX: usize = 2000;
const WIDE_FOLDED: usize = 10;

pub fn wide_parts(regex: &str, folded: bool) -> usize {
    let flags = |group: &str| {
        let end = group.find(|c: char| !c.is_ascii_alphabetic());
        group[..end.unwrap_or(group.len())].contains('i')
    };
    let folded = folded || regex.split("(?").skip(1).any(flags);
    let each = if folded { WIDE_FOLDED } else { 1 };
    let (mut n, mut escaped, mut before) = (0, false, 0);
    for b in regex.bytes() {
        n += match b {
            b'p' | b'P' | b'w' | b'W' | b'd' | b'D' | b's' | b'S' if escaped => each,
            b'\\' | 0x80.. if folded && before == b'-' => each,
            _ => 0,
        };
        escaped = b == b'\\' && !escaped;
        before = b;
    }
    n
}

/// Says why derivre cannot use this regular expression. `search`: anywhere in a text.
pub fn check(regex: &str, search: bool) -> Result<(), String> {
    if optional_parts(regex) > OPTIONAL_MAX {
        return Err(format!("too many repeated parts, at most {OPTIONAL_MAX}"));
    }
    if wide_parts(regex, false) > WIDE_MAX {
        return Err(format!("too many classes, at most {WIDE_MAX}"));
    }
    let slashes = regex.chars().rev().take_while(|c| *c == '\\').count();
    if slashes % 2 == 1 {
        return Err("a backslash at the end".into());
    }
    let mut builder = RegexBuilder::new();
    let made = if search {
        builder.mk_regex_for_serach(&regex_to_lark(regex, "dw"))
    } else {
        builder.mk_regex(&regex_to_lark(regex, ""))
    };
    made.map(|_| ()).map_err(|e| reason(&e.to_string()))
}

/// regex-syntax draws a picture of several lines; its last line says what is wrong.
fn reason(text: &str) -> String {
    let last = text.lines().rev().find(|l| !l.trim().is_empty());
    let last = last.unwrap_or("not a regular expression").trim();
    last.strip_prefix("error: ").unwrap_or(last).to_string()
}
