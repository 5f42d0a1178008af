// SPDX-License-Identifier: Apache-2.0
//! Whether some finite text fits a rewritten schema: one that requires itself within itself can
//! begin and never end. A least fixed point over the entries of $defs; in doubt it says yes.

use std::cell::Cell;

use serde_json::{Map, Value};

/// Schemas looked at, about 0.1 us each. Entries mostly refer to later ones, so that few rounds
/// are enough.
const STEPS_MAX: usize = 2_000_000;

/// False only if nothing finite fits; None if it would take too long to know.
pub fn fits_something(root: &Map<String, Value>) -> Option<bool> {
    let none = Map::new();
    let defs = root
        .get("$defs")
        .and_then(Value::as_object)
        .unwrap_or(&none);
    let mut known = Known {
        finite: vec![false; defs.len()],
        steps: Cell::new(0),
    };
    loop {
        let mut changed = false;
        for (i, schema) in defs.values().enumerate().rev() {
            if !known.finite[i] && fits(schema, &known) {
                known.finite[i] = true;
                changed = true;
            }
            if known.steps.get() > STEPS_MAX {
                return None;
            }
        }
        if !changed {
            return Some(object_fits(root, &known));
        }
    }
}

struct Known {
    finite: Vec<bool>, // of each entry
    steps: Cell<usize>,
}

fn fits(schema: &Value, known: &Known) -> bool {
    known.steps.set(known.steps.get() + 1);
    match schema {
        Value::Object(map) => object_fits(map, known),
        other => *other != Value::Bool(false),
    }
}

fn object_fits(map: &Map<String, Value>, known: &Known) -> bool {
    let list = |key: &str| map.get(key).and_then(Value::as_array);
    let target = map
        .get("$ref")
        .and_then(Value::as_str)
        .and_then(|r| r.strip_prefix("#/$defs/"));
    let target = target.and_then(|n| n.parse::<usize>().ok());
    target.is_none_or(|n| known.finite.get(n).copied().unwrap_or(true))
        && list("anyOf").is_none_or(|l| l.iter().any(|s| fits(s, known)))
        && list("allOf").is_none_or(|l| l.iter().all(|s| fits(s, known)))
        && own_fits(map, known)
}

/// The keywords of arrays and objects, for the types that there may be.
fn own_fits(map: &Map<String, Value>, known: &Known) -> bool {
    if map.contains_key("const") || map.contains_key("enum") {
        return true;
    }
    let one = |name: &str| match name {
        "object" => properties_fit(map, known),
        "array" => items_fit(map, known),
        _ => true,
    };
    match map.get("type") {
        Some(Value::String(name)) => one(name),
        Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).any(one),
        _ => true,
    }
}

fn properties_fit(map: &Map<String, Value>, known: &Known) -> bool {
    let required = map.get("required").and_then(Value::as_array);
    let named = map.get("properties").and_then(Value::as_object);
    required
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .all(|name| match named.and_then(|n| n.get(name)) {
            Some(schema) => fits(schema, known),
            None if map.contains_key("patternProperties") => true,
            None => map
                .get("additionalProperties")
                .is_none_or(|s| fits(s, known)),
        })
}

fn items_fit(map: &Map<String, Value>, known: &Known) -> bool {
    let wanted = map.get("minItems").and_then(Value::as_u64).unwrap_or(0) as usize;
    let none = Vec::new();
    let first = map
        .get("prefixItems")
        .and_then(Value::as_array)
        .unwrap_or(&none);
    first.iter().take(wanted).all(|s| fits(s, known))
        && (wanted <= first.len() || map.get("items").is_none_or(|s| fits(s, known)))
}
