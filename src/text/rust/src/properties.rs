// SPDX-License-Identifier: Apache-2.0
//! The keywords that speak of an object's names: required, propertyNames, minProperties,
//! maxProperties.

use serde_json::{Map, Value};

use crate::schema::{count, invalid, unsupported};
use crate::Failure;

/// An optional property is four items in a row of the parser, which may have 4,000.
pub const PROPERTIES_MAX: usize = 900;

/// A name that must be there and cannot be is what is wrong, not that no text can end.
pub fn required(map: &Map<String, Value>, value: &Value, at: &str) -> Result<Value, Failure> {
    let made = names(value, at)?;
    let closed = map.get("additionalProperties") == Some(&Value::Bool(false))
        && !map.contains_key("patternProperties");
    let named = map.get("properties").and_then(Value::as_object);
    let mut asked = made.as_array().into_iter().flatten();
    let missing =
        asked.find(|n| !named.is_some_and(|m| n.as_str().is_some_and(|k| m.contains_key(k))));
    match missing {
        Some(name) if closed => {
            let short: String = name.as_str().unwrap_or("").chars().take(64).collect();
            let text = format!(
                "{} is not among properties, and no other may come",
                Value::from(short)
            );
            Err(invalid(at, &text))
        }
        _ => Ok(made),
    }
}

fn names(value: &Value, at: &str) -> Result<Value, Failure> {
    match value.as_array() {
        Some(list) if list.len() > PROPERTIES_MAX => {
            let text = format!(
                "schema at {at}: {} names, at most {PROPERTIES_MAX}",
                list.len()
            );
            Err(Failure::Limit(text))
        }
        Some(list) if list.iter().all(Value::is_string) => Ok(value.clone()),
        _ => Err(invalid(at, "must be an array of strings")),
    }
}

pub fn any_name(value: &Value) -> bool {
    match value {
        Value::Object(map) => map.iter().all(|(k, v)| k == "type" && v == "string"),
        _ => *value == Value::Bool(true),
    }
}

/// minProperties and maxProperties. A key may come twice among those that are not named, and counts
/// once; and llguidance does not count named ones that may be absent, but for "at most one of them".
pub fn properties_count(
    map: &Map<String, Value>,
    key: &str,
    value: &Value,
    at: &str,
) -> Result<Value, Failure> {
    let wanted = count(value, at)?;
    let mut required: Vec<_> = match map.get("required") {
        Some(Value::Array(list)) => list.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    required.sort_unstable();
    required.dedup();
    let rest = wanted
        .as_u64()
        .unwrap_or(0)
        .saturating_sub(required.len() as u64);
    let open = map.get("additionalProperties") != Some(&Value::Bool(false))
        || map.contains_key("patternProperties");
    let named = map.get("properties").and_then(Value::as_object);
    let optional = named.is_some_and(|n| n.keys().any(|k| !required.contains(&k.as_str())));
    let least = key == "minProperties";
    if least && open && rest > 1 {
        return Err(unsupported(at, "at most one more than the required ones"));
    }
    let counts = if least { rest > 0 } else { true };
    let one = if least { rest <= 1 } else { rest == 1 };
    if optional && counts && (open || !one) {
        return Err(unsupported(
            at,
            "not supported beside properties that may be absent",
        ));
    }
    Ok(wanted)
}
