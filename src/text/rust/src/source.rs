// SPDX-License-Identifier: Apache-2.0
//! A template's source, adapted where minijinja reads or runs the same text differently than
//! jinja2 in the reference library's setting. Lines keep their numbers.
//!
//! - `{% generation %}` marks the answer for training; here it is a block that always runs.
//! - `{% for x in none %}` is an error in Python, an empty loop in minijinja: what is iterated goes
//!   through the filter ITERATED.
//! - The line end behind `{% raw %}` stays.

pub const ITERATED: &str = "_troika_iterated";

/// The bytes up to and with the `close` that ends a tag: not in a string, not in brackets. None if
/// it does not end.
fn tag_end(tag: &str, close: &str) -> Option<usize> {
    let bytes = tag.as_bytes();
    let (mut depth, mut at) = (0usize, 2);
    while at < bytes.len() {
        if depth == 0 && tag[at..].starts_with(close) {
            return Some(at + close.len());
        }
        at = step(tag, at, &mut depth);
    }
    None
}

/// The place behind the string, bracket or character at `at`.
fn step(text: &str, at: usize, depth: &mut usize) -> usize {
    let bytes = text.as_bytes();
    match bytes[at] {
        quote @ (b'"' | b'\'') => {
            let mut end = at + 1;
            while end < bytes.len() && bytes[end] != quote {
                end += 1 + (bytes[end] == b'\\') as usize;
            }
            let mut end = (end + 1).min(bytes.len());
            while !text.is_char_boundary(end) {
                end += 1;
            }
            return end;
        }
        b'(' | b'[' | b'{' => *depth += 1,
        b')' | b']' | b'}' => *depth = depth.saturating_sub(1),
        _ => {}
    }
    at + text[at..].chars().next().map_or(1, char::len_utf8)
}

/// The place of the first of `words` that stands alone, outside strings and brackets.
fn find_word(text: &str, words: &[&str]) -> Option<usize> {
    let in_word = |c: char| c.is_alphanumeric() || c == '_';
    let (mut depth, mut at, mut before) = (0usize, 0, ' ');
    while at < text.len() {
        if depth == 0 && !in_word(before) && before != '.' {
            for word in words {
                if let Some(rest) = text[at..].strip_prefix(word) {
                    if !rest.chars().next().is_some_and(in_word) {
                        return Some(at);
                    }
                }
            }
        }
        let next = step(text, at, &mut depth);
        before = text[at..next].chars().next_back().unwrap_or(' ');
        at = next;
    }
    None
}

/// `x in items if x.y` becomes `x in (items)|ITERATED if x.y`. None if this is no such loop.
fn iterated(rest: &str) -> Option<String> {
    let from = find_word(rest, &["in"])? + "in".len();
    let end = find_word(&rest[from..], &["if", "recursive"]).map_or(rest.len(), |n| from + n);
    let items = &rest[from..end];
    if items.trim().is_empty() {
        return None;
    }
    Some(format!(
        "{} ({items})|{ITERATED} {}",
        &rest[..from],
        &rest[end..]
    ))
}

/// A `{% ... %}` tag, and whether a raw block begins with it.
fn block_tag(tag: &str) -> (String, bool) {
    let inner = &tag[2..tag.len() - 2];
    let is_sign = |c: char| c == '-' || c == '+';
    let opened = inner.strip_prefix(is_sign).unwrap_or(inner);
    let body = opened.strip_suffix(is_sign).unwrap_or(opened);
    let open = &inner[..inner.len() - opened.len()];
    let close = &opened[body.len()..];
    let word = body.trim();
    let new = match word {
        "generation" => body.replacen(word, "if true", 1),
        "endgeneration" => body.replacen(word, "endif", 1),
        "raw" if close.is_empty() => return (format!("{{%{open}{body}+%}}"), true),
        "raw" => return (tag.into(), true),
        _ => {
            let looped = body
                .trim_start()
                .strip_prefix("for")
                .filter(|rest| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_'))
                .and_then(|rest| Some((rest, iterated(rest)?)));
            match looped {
                Some((rest, loop_text)) => {
                    format!("{}{loop_text}", &body[..body.len() - rest.len()])
                }
                None => return (tag.into(), false),
            }
        }
    };
    (format!("{{%{open}{new}{close}%}}"), false)
}

/// The bytes before the `{% endraw %}`, or all.
fn raw_len(text: &str) -> usize {
    let mut from = 0;
    while let Some(found) = text[from..].find("{%") {
        let at = from + found;
        let word = text[at + 2..].trim_start_matches(['-', '+']).trim_start();
        if word.starts_with("endraw") {
            return at;
        }
        from = at + 2;
    }
    text.len()
}

pub fn adapted(source: &str) -> String {
    let mut out = String::with_capacity(source.len() + 256);
    let mut rest = source;
    while let Some(at) = rest
        .match_indices('{')
        .map(|(at, _)| at)
        .find(|&at| matches!(rest.as_bytes().get(at + 1), Some(b'{' | b'%' | b'#')))
    {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let end = match rest.as_bytes()[1] {
            b'#' => rest[2..].find("#}").map(|n| n + 4),
            b'%' => tag_end(rest, "%}"),
            _ => tag_end(rest, "}}"),
        };
        let Some(end) = end else { break };
        let (tag, behind) = rest.split_at(end);
        rest = behind;
        if !tag.starts_with("{%") {
            out.push_str(tag);
            continue;
        }
        let (new, raw) = block_tag(tag);
        out.push_str(&new);
        if raw {
            let (text, behind) = rest.split_at(raw_len(rest));
            out.push_str(text);
            rest = behind;
        }
    }
    out.push_str(rest);
    out
}
