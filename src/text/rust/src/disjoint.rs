// SPDX-License-Identifier: Apache-2.0
//! Whether the branches of a oneOf exclude one another, by what can be seen at once: types,
//! constants, and a required property (a tag) that does.

use serde_json::{Map, Value};

type Resolve<'a, 'r> = &'r dyn Fn(&str) -> Option<&'a Value>;

const DEPTH_MAX: usize = 16;
const BRANCHES_MAX: usize = 128;

const NULL: u8 = 1;
const BOOLEAN: u8 = 2;
const WHOLE: u8 = 4;
const FRACTION: u8 = 8;
const STRING: u8 = 16;
const ARRAY: u8 = 32;
const OBJECT: u8 = 64;
const ALL: u8 = 127;

/// The first two branches that may overlap.
pub fn overlap<'a>(list: &'a [Value], resolve: Resolve<'a, '_>) -> Option<(usize, usize)> {
    if list.len() > BRANCHES_MAX {
        return Some((0, BRANCHES_MAX));
    }
    for b in 1..list.len() {
        for a in 0..b {
            if !disjoint(&list[a], &list[b], resolve, 0) {
                return Some((a, b));
            }
        }
    }
    None
}

/// A reference without siblings is what it leads to; one with siblings is left alone: what stands
/// beside it only narrows it.
fn follow<'a>(mut schema: &'a Value, resolve: Resolve<'a, '_>) -> &'a Value {
    for _ in 0..DEPTH_MAX {
        let next = schema.get("$ref").and_then(Value::as_str).and_then(resolve);
        match next {
            Some(next) => schema = next,
            None => return schema,
        }
    }
    schema
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

/// The types that a value of this schema may have, and perhaps more.
fn types<'a>(schema: &'a Value, resolve: Resolve<'a, '_>, depth: usize) -> u8 {
    let map = match follow(schema, resolve) {
        Value::Object(map) if depth < DEPTH_MAX => map,
        Value::Bool(false) => return 0,
        _ => return ALL,
    };
    let mut may = match map.get("type") {
        Some(Value::Array(list)) => list.iter().fold(0, |t, v| t | named_type(v)),
        Some(value) => named_type(value),
        None => ALL,
    };
    if let Some(values) = constants(map) {
        may &= values.iter().fold(0, |t, v| t | value_type(v));
    }
    for key in ["anyOf", "oneOf"] {
        if let Some(Value::Array(list)) = map.get(key).filter(|_| depth < 3) {
            may &= list.iter().fold(0, |t, v| t | types(v, resolve, depth + 1));
        }
    }
    may
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

fn disjoint<'a>(a: &'a Value, b: &'a Value, resolve: Resolve<'a, '_>, depth: usize) -> bool {
    let both = types(a, resolve, 0) & types(b, resolve, 0);
    if both == 0 {
        return true;
    }
    let (Some(a), Some(b)) = (
        follow(a, resolve).as_object(),
        follow(b, resolve).as_object(),
    ) else {
        return false;
    };
    if let (Some(a), Some(b)) = (constants(a), constants(b)) {
        return !a.iter().any(|x| b.iter().any(|y| equal(x, y)));
    }
    if both != OBJECT || depth > 2 {
        return false;
    }
    let property = |map: &'a Map<String, Value>, key: &str| map.get("properties")?.get(key);
    required(a)
        .chain(required(b))
        .any(|key| match (property(a, key), property(b, key)) {
            (Some(a), Some(b)) => disjoint(a, b, resolve, depth + 1),
            _ => false,
        })
}
