// SPDX-License-Identifier: Apache-2.0
//! Whether the branches of a oneOf exclude one another, by what can be seen at once: types,
//! constants, and a required property (a tag) that does.

use std::cell::Cell;

use serde_json::{Map, Value};

const DEPTH_MAX: usize = 16;
const BRANCHES_MAX: usize = 128;
/// For all oneOf of a schema together: about 10 ms.
const STEPS_MAX: usize = 100_000;

const NULL: u8 = 1;
const BOOLEAN: u8 = 2;
const WHOLE: u8 = 4;
const FRACTION: u8 = 8;
const STRING: u8 = 16;
const ARRAY: u8 = 32;
const OBJECT: u8 = 64;
const ALL: u8 = 127;

/// Steps that were taken for one schema so far.
#[derive(Default)]
pub struct Work(Cell<usize>);

impl Work {
    /// False if there have been too many; from then on always.
    fn take(&self, steps: usize) -> bool {
        self.0.set(self.0.get().saturating_add(steps));
        !self.spent()
    }

    /// A text of a source is hashed or compared: long ones are more than one step.
    fn take_text(&self, text: &str) -> bool {
        self.take(1 + text.len() / 64)
    }

    /// If so, an overlap that was found is none, only a search that was given up.
    pub fn spent(&self) -> bool {
        self.0.get() > STEPS_MAX
    }
}

pub struct Search<'a, 'r> {
    pub resolve: &'r dyn Fn(&str) -> Option<&'a Value>,
    pub work: &'r Work,
}

fn value_type(value: &Value) -> u8 {
    match value {
        Value::Null => NULL,
        Value::Bool(_) => BOOLEAN,
        Value::Number(n) if n.as_f64().is_some_and(|f| f.fract() != 0.0) => FRACTION,
        Value::Number(_) => WHOLE,
        Value::String(_) => STRING,
        Value::Array(_) => ARRAY,
        Value::Object(_) => OBJECT,
    }
}

fn named_type(value: &Value) -> u8 {
    match value.as_str() {
        Some("null") => NULL,
        Some("boolean") => BOOLEAN,
        Some("integer") => WHOLE,
        Some("number") => WHOLE | FRACTION,
        Some("string") => STRING,
        Some("array") => ARRAY,
        Some("object") => OBJECT,
        _ => ALL,
    }
}

fn constants(map: &Map<String, Value>) -> Option<&[Value]> {
    match (map.get("const"), map.get("enum")) {
        (Some(value), _) => Some(std::slice::from_ref(value)),
        (None, Some(Value::Array(list))) => Some(list),
        _ => None,
    }
}

fn equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a.as_f64() == b.as_f64(),
        (Value::Array(_), Value::Array(_)) | (Value::Object(_), Value::Object(_)) => true, // perhaps
        _ => a == b,
    }
}

fn required(map: &Map<String, Value>) -> impl Iterator<Item = &str> {
    let list = map.get("required").and_then(Value::as_array);
    list.into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .take(64)
}

impl<'a> Search<'a, '_> {
    /// The first two branches that may overlap.
    pub fn overlap(&self, list: &'a [Value]) -> Option<(usize, usize)> {
        if list.len() > BRANCHES_MAX {
            return Some((0, BRANCHES_MAX));
        }
        for b in 1..list.len() {
            for a in 0..b {
                if !self.disjoint(&list[a], &list[b], 0) {
                    return Some((a, b));
                }
            }
        }
        None
    }

    /// A reference without siblings is what it leads to; one with siblings is left alone: what
    /// stands beside it only narrows it.
    fn follow(&self, mut schema: &'a Value) -> &'a Value {
        for _ in 0..DEPTH_MAX {
            let next = schema.get("$ref").and_then(Value::as_str);
            let next = next.filter(|text| self.work.take_text(text));
            match next.and_then(self.resolve) {
                Some(next) => schema = next,
                None => return schema,
            }
        }
        schema
    }

    /// The types that a value of this schema may have, and perhaps more.
    fn types(&self, schema: &'a Value, depth: usize) -> u8 {
        if !self.work.take(1) {
            return ALL;
        }
        let map = match self.follow(schema) {
            Value::Object(map) if depth < DEPTH_MAX => map,
            Value::Bool(false) => return 0,
            _ => return ALL,
        };
        let mut may = match map.get("type") {
            Some(Value::Array(list)) if !self.work.take(list.len() / 4) => return ALL,
            Some(Value::Array(list)) => list.iter().fold(0, |t, v| t | named_type(v)),
            Some(value) => named_type(value),
            None => ALL,
        };
        if let Some(values) = constants(map).filter(|l| self.work.take(l.len() / 4)) {
            may &= values.iter().fold(0, |t, v| t | value_type(v));
        }
        for key in ["anyOf", "oneOf"] {
            if let Some(Value::Array(list)) = map.get(key).filter(|_| depth < 3) {
                let mut any = 0;
                for branch in list {
                    if self.work.spent() {
                        return ALL;
                    }
                    any |= self.types(branch, depth + 1);
                }
                may &= any;
            }
        }
        may
    }

    fn share(&self, a: &[Value], b: &[Value]) -> bool {
        let meets = |x: &Value| {
            let taken = self.work.take(1 + b.len() / 8);
            let texts = x
                .as_str()
                .is_none_or(|text| self.work.take(text.len() / 64));
            !taken || !texts || b.iter().any(|y| equal(x, y))
        };
        a.iter().any(meets)
    }

    fn disjoint(&self, a: &'a Value, b: &'a Value, depth: usize) -> bool {
        let both = self.types(a, 0) & self.types(b, 0);
        if self.work.spent() {
            return false;
        }
        if both == 0 {
            return true;
        }
        let (Some(a), Some(b)) = (self.follow(a).as_object(), self.follow(b).as_object()) else {
            return false;
        };
        if let (Some(a), Some(b)) = (constants(a), constants(b)) {
            return !self.share(a, b);
        }
        if both != OBJECT || depth > 2 {
            return false;
        }
        let property = |map: &'a Map<String, Value>, key: &str| map.get("properties")?.get(key);
        required(a).chain(required(b)).any(|key| {
            self.work.take_text(key)
                && match (property(a, key), property(b, key)) {
                    (Some(a), Some(b)) => self.disjoint(a, b, depth + 1),
                    _ => false,
                }
        })
    }
}
