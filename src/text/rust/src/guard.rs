// SPDX-License-Identifier: Apache-2.0
//! Tells in rendered text which characters came from a message, so that no message can write a
//! control token.
//!
//! Before rendering, characters of the messages with which a control token could begin or end are
//! replaced, one for one, by private characters that occur in neither template nor messages;
//! afterwards each is put back, and its place is reported. A control token that covers a reported
//! place is literal. Filters may move, cut, join and quote the text: the mark moves along.
//!
//! A template may look at what was replaced (`'</think>' in content`). So the messages are also
//! rendered untouched, and a marking counts only if the marks, put back, give exactly that text:
//! what the model reads is always what the reference library would give it. Three markings are
//! tried, each touching less:
//!   1. every character that is the first or last of some control token;
//!   2. only where it stands beside the neighbour that it has in some control token, or at the
//!      edge of its string;
//!   3. only the first character of whole control tokens.
//!
//! With 1 no token can be made from message text. With 2 it would take a template that cuts out the
//! middle of a string so that the first two and the last two characters of a token are formed anew;
//! with 3 one that joins parts of different strings.

use std::collections::{HashMap, HashSet};

use minijinja::Value;

pub struct Controls<'a> {
    tokens: Vec<&'a str>,
    edges: HashSet<char>,
    first: HashSet<char>,
    last: HashSet<char>,
    first_two: HashSet<(char, char)>,
    last_two: HashSet<(char, char)>,
}

#[derive(Clone, Copy, PartialEq)]
pub enum Level {
    Edges,
    Pairs,
    Whole,
}

pub const LEVELS: [Level; 3] = [Level::Edges, Level::Pairs, Level::Whole];

impl<'a> Controls<'a> {
    pub fn new(tokens: Vec<&'a str>) -> Self {
        let (mut first, mut last) = (HashSet::new(), HashSet::new());
        let (mut first_two, mut last_two) = (HashSet::new(), HashSet::new());
        for token in &tokens {
            let mut forward = token.chars();
            let mut backward = token.chars().rev();
            let (Some(a), Some(z)) = (forward.next(), backward.next()) else {
                continue;
            };
            first.insert(a);
            last.insert(z);
            if let (Some(b), Some(y)) = (forward.next(), backward.next()) {
                first_two.insert((a, b));
                last_two.insert((y, z));
            }
        }
        let edges = first.union(&last).copied().collect();
        Controls {
            tokens,
            edges,
            first,
            last,
            first_two,
            last_two,
        }
    }
}

/// One private character for each that is replaced.
pub struct Marks {
    of: HashMap<char, char>,
    back: HashMap<char, char>,
}

fn strings(json: &serde_json::Value, see: &mut impl FnMut(&str)) {
    match json {
        serde_json::Value::String(text) => see(text),
        serde_json::Value::Array(items) => items.iter().for_each(|item| strings(item, see)),
        serde_json::Value::Object(map) => {
            for (key, value) in map {
                see(key);
                strings(value, see);
            }
        }
        _ => {}
    }
}

/// Some string has a character with which a control token begins or ends.
pub fn needed(controls: &Controls, json: &[&serde_json::Value]) -> bool {
    let mut found = false;
    for value in json {
        strings(value, &mut |text| {
            found = found || text.chars().any(|c| controls.edges.contains(&c))
        });
    }
    found
}

const PLANE: std::ops::RangeInclusive<u32> = 0xF0000..=0xFFFFD;

/// Those that occur in neither the template nor the messages.
pub fn private_letters(
    template: &str,
    json: &[&serde_json::Value],
) -> impl Iterator<Item = char> + use<> {
    let mut used: HashSet<char> = HashSet::new();
    let mut see = |text: &str| used.extend(text.chars().filter(|c| PLANE.contains(&(*c as u32))));
    see(template);
    for value in json {
        strings(value, &mut see);
    }
    PLANE
        .filter_map(char::from_u32)
        .filter(move |c| !used.contains(c))
}

impl Marks {
    /// None if the private plane is used up.
    pub fn choose(
        controls: &Controls,
        template: &str,
        json: &[&serde_json::Value],
    ) -> Option<Marks> {
        let mut free = private_letters(template, json);
        let mut edges: Vec<char> = controls.edges.iter().copied().collect();
        edges.sort_unstable();
        let mut marks = Marks {
            of: HashMap::new(),
            back: HashMap::new(),
        };
        for c in edges {
            let private = free.next()?;
            marks.of.insert(c, private);
            marks.back.insert(private, c);
        }
        Some(marks)
    }

    fn put(&self, c: char) -> char {
        self.of.get(&c).copied().unwrap_or(c)
    }

    fn mark_edges(&self, text: &str) -> String {
        text.chars().map(|c| self.put(c)).collect()
    }

    fn mark_pairs(&self, controls: &Controls, text: &str) -> String {
        let letters: Vec<char> = text.chars().collect();
        let mut out = String::with_capacity(text.len());
        for (i, &c) in letters.iter().enumerate() {
            let begins = controls.first.contains(&c)
                && letters
                    .get(i + 1)
                    .is_none_or(|&next| controls.first_two.contains(&(c, next)));
            let ends = controls.last.contains(&c)
                && (i == 0 || controls.last_two.contains(&(letters[i - 1], c)));
            out.push(if begins || ends { self.put(c) } else { c });
        }
        out
    }

    fn mark_whole(&self, controls: &Controls, text: &str) -> String {
        let mut at: HashSet<usize> = HashSet::new();
        for token in controls.tokens.iter().filter(|token| !token.is_empty()) {
            let mut from = 0;
            while let Some(found) = text[from..].find(token) {
                at.insert(from + found);
                from += found + token.chars().next().map_or(1, char::len_utf8);
            }
        }
        text.char_indices()
            .map(|(i, c)| if at.contains(&i) { self.put(c) } else { c })
            .collect()
    }

    pub fn mark(&self, controls: &Controls, level: Level, text: &str) -> String {
        match level {
            Level::Edges => self.mark_edges(text),
            Level::Pairs => self.mark_pairs(controls, text),
            Level::Whole => self.mark_whole(controls, text),
        }
    }

    /// The text with its own characters again, and the byte places of those that were marked.
    pub fn unmark(&self, text: &str) -> (String, Vec<usize>) {
        let mut out = String::with_capacity(text.len());
        let mut places = Vec::new();
        for c in text.chars() {
            match self.back.get(&c) {
                Some(&original) => {
                    places.push(out.len());
                    out.push(original);
                }
                None => out.push(c),
            }
        }
        (out, places)
    }
}

/// JSON as the template sees it, each string (keys too) passed through `change`.
pub fn to_value(json: &serde_json::Value, change: &dyn Fn(&str) -> String) -> Value {
    match json {
        serde_json::Value::Null => Value::from(()),
        serde_json::Value::Bool(b) => Value::from(*b),
        serde_json::Value::Number(n) => match (n.as_i64(), n.as_u64(), n.as_f64()) {
            (Some(i), _, _) => Value::from(i),
            (_, Some(u), _) => Value::from(u),
            (_, _, f) => Value::from(f.unwrap_or(f64::NAN)),
        },
        serde_json::Value::String(text) => Value::from(change(text)),
        serde_json::Value::Array(items) => {
            items.iter().map(|item| to_value(item, change)).collect()
        }
        serde_json::Value::Object(map) => Value::from_pairs(
            map.iter()
                .map(|(key, value)| (change(key), to_value(value, change))),
        ),
    }
}
