// SPDX-License-Identifier: Apache-2.0
//! A JSON schema from outside, rewritten into what llguidance is known to enforce.
//!
//! Nothing is passed through: each keyword that comes out was understood here, so that what
//! llguidance would ignore, or read in another way, is refused with its keyword and place. Each
//! target of a $ref becomes an entry of $defs; drafts, $id and anchors are gone afterwards.

use std::collections::HashMap;

use serde_json::{json, Map, Value};

use crate::properties::{any_name, properties_count, required, PROPERTIES_MAX};
use crate::reference::{target_path, References};
use crate::{disjoint, finite, meet, regex, Failure};

pub const NESTING_MAX: usize = 100;
const NODES_MAX: usize = 50_000;
/// Alternatives times what stands beside them: llguidance multiplies them out.
const PRODUCT_MAX: usize = 200_000;
/// Whole numbers up to here are themselves as doubles, which llguidance computes with.
const EXACT: i128 = 1 << 53;
/// Its bounds of integers must have at most 18 digits.
const BOUND_MAX: f64 = 999_999_999_999_999_872.0;
const COUNT_MAX: u64 = 1_000_000;
/// Each is compared with each other.
const PATTERNS_MAX: usize = 32;

/// Not validation: whatever they say, no text is forbidden.
const ANNOTATIONS: [&str; 24] = [
    "title",
    "description",
    "default",
    "examples",
    "example",
    "deprecated",
    "readOnly",
    "writeOnly",
    "nullable",
    "discriminator",
    "xml",
    "externalDocs",
    "$comment",
    "$schema",
    "$anchor",
    "$dynamicAnchor",
    "$recursiveAnchor",
    "$vocabulary",
    "contentMediaType",
    "contentEncoding",
    "contentSchema",
    "$defs",
    "definitions",
    "x-guidance",
];

/// Validation of some draft that is not enforced.
const REFUSED: [&str; 21] = [
    "not",
    "if",
    "then",
    "else",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "contains",
    "minContains",
    "maxContains",
    "unevaluatedItems",
    "unevaluatedProperties",
    "$dynamicRef",
    "$recursiveRef",
    "divisibleBy",
    "disallow",
    "extends",
    "formatMinimum",
    "formatMaximum",
    "formatExclusiveMinimum",
    "formatExclusiveMaximum",
];

/// What is intersected with the keywords beside it.
const APPLICATORS: [&str; 6] = ["const", "enum", "allOf", "anyOf", "oneOf", "$ref"];

const FORMATS: [&str; 6] = ["duration", "email", "hostname", "ipv4", "ipv6", "uuid"];

/// RFC 3339, without leap seconds.
const DATE: &str = concat!(
    "(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])",
    "|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))",
    "|(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29)"
);
const TIME: &str =
    "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,9})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])";

pub fn invalid(path: &str, text: &str) -> Failure {
    Failure::Invalid(format!("schema at {path}: {text}"))
}

pub fn unsupported(path: &str, text: &str) -> Failure {
    Failure::Unsupported(format!("schema at {path}: {text}"))
}

pub fn child(path: &str, key: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-' || c == '$';
    if !key.is_empty() && key.len() <= 64 && key.chars().all(plain) {
        return format!("{path}.{key}");
    }
    let short: String = key.chars().take(32).collect();
    format!("{path}[{}]", Value::from(short))
}

/// Brackets within brackets, outside of strings: before a parser recurses over them.
pub fn nesting_check(source: &str) -> Result<(), Failure> {
    let (mut depth, mut in_string, mut escaped) = (0usize, false, false);
    for (i, b) in source.bytes().enumerate() {
        match b {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b'[' | b'{' if !in_string => depth += 1,
            b']' | b'}' if !in_string => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > NESTING_MAX {
            return Err(Failure::Limit(format!(
                "schema: nested deeper than {NESTING_MAX} at byte {i}"
            )));
        }
    }
    Ok(())
}

/// What llguidance gets: an object, with its options for the blanks between parts of a value.
pub fn rewrite(source: &str, options: Value) -> Result<Value, Failure> {
    nesting_check(source)?;
    let root: Value =
        serde_json::from_str(source).map_err(|e| Failure::Invalid(format!("schema: {e}")))?;
    let mut r = Rewriter {
        references: References::new(&root),
        work: disjoint::Work::default(),
        targets: Vec::new(),
        numbers: HashMap::new(),
        nodes: 0,
        multiple: None,
        multiples: None,
        intersects: false,
        patterns: 0,
        optional: 0,
        wide: 0,
    };
    let mut out = match r.schema(&root, "$")? {
        Value::Object(map) => map,
        Value::Bool(true) => Map::new(),
        _ => return Err(invalid("$", "false allows nothing")),
    };
    narrow(&mut out);
    let mut defs = Map::new();
    while let Some((target, path)) = r.targets.get(defs.len()).cloned() {
        let made = r.schema(target, &path)?;
        defs.insert(defs.len().to_string(), made);
    }
    if let Some(at) = r.multiples.filter(|_| r.intersects) {
        let text = "a second value of it is not supported beside combinations of schemas";
        return Err(unsupported(&at, text));
    }
    if !defs.is_empty() {
        out.insert("$defs".into(), Value::Object(defs));
    }
    match finite::fits_something(&out) {
        Some(true) => {}
        Some(false) => {
            let text = "requires itself within itself, so that no text can end";
            return Err(invalid("$", text));
        }
        None => {
            let text = "schema at $: too many parts that refer to each other";
            return Err(Failure::Limit(text.into()));
        }
    }
    if !meet::bearable(&out) {
        let text = "schema at $: too many patterns meet in one string, or too many combinations";
        return Err(Failure::Limit(text.into()));
    }
    out.insert("x-guidance".into(), options);
    Ok(Value::Object(out))
}

/// A root that speaks of properties and of no type means an object, though the letter of the
/// standard lets everything else pass too.
fn narrow(root: &mut Map<String, Value>) {
    const SAYS_MORE: [&str; 7] = ["type", "enum", "const", "$ref", "anyOf", "allOf", "items"];
    let object = ["properties", "required", "additionalProperties"];
    if object.iter().any(|k| root.contains_key(*k))
        && !SAYS_MORE.iter().any(|k| root.contains_key(*k))
    {
        root.insert("type".into(), "object".into());
    }
}

struct Rewriter<'a> {
    references: References<'a>,
    work: disjoint::Work,
    targets: Vec<(&'a Value, String)>, // of $ref, with the path of the reference
    numbers: HashMap<*const Value, usize>,
    nodes: usize,
    multiple: Option<f64>,
    multiples: Option<String>, // where a second value of it is
    intersects: bool,
    patterns: usize, // of properties
    optional: usize, // parts of patterns that may be empty
    wide: usize,     // classes of many characters in patterns
}

/// One schema while it is rewritten.
#[derive(Default)]
struct Parts {
    out: Map<String, Value>,
    also: Vec<Value>, // joined by allOf
}

impl<'a> Rewriter<'a> {
    fn count(&mut self, path: &str) -> Result<(), Failure> {
        self.nodes += 1;
        if self.nodes > NODES_MAX {
            return Err(Failure::Limit(format!(
                "schema at {path}: more than {NODES_MAX} parts"
            )));
        }
        Ok(())
    }

    fn schema(&mut self, value: &'a Value, path: &str) -> Result<Value, Failure> {
        self.count(path)?;
        let map = match value {
            Value::Bool(_) => return Ok(value.clone()),
            Value::Object(map) => map,
            _ => return Err(invalid(path, "must be an object, true or false")),
        };
        product_check(map, path)?;
        self.intersects |= intersects(map);
        let mut parts = Parts::default();
        for (key, value) in map {
            self.keyword(&mut parts, map, key, value, path)?;
        }
        // In front of a combination llguidance wants to have seen all keywords that belong
        // together.
        let (late, mut out): (Map<_, _>, Map<_, _>) = parts
            .out
            .into_iter()
            .partition(|(key, _)| APPLICATORS.contains(&key.as_str()));
        out.extend(late);
        if !parts.also.is_empty() {
            let all = out.entry("allOf").or_insert_with(|| json!([]));
            if let Value::Array(all) = all {
                all.append(&mut parts.also);
            }
        }
        Ok(Value::Object(out))
    }

    fn keyword(
        &mut self,
        parts: &mut Parts,
        map: &'a Map<String, Value>,
        key: &str,
        value: &'a Value,
        path: &str,
    ) -> Result<(), Failure> {
        let at = child(path, key);
        let made = match key {
            "type" => types(value, &at)?,
            "const" => self.constant(value, &at)?,
            "enum" => {
                let list = array(value, &at)?;
                let made: Result<Vec<_>, _> = list.iter().map(|v| self.constant(v, &at)).collect();
                Value::Array(made?)
            }
            "properties" => self.named(value, &at)?,
            "patternProperties" => self.patterned(value, &at)?,
            "additionalProperties" => self.schema(value, &at)?,
            "items" if value.is_array() => return self.tuple(parts, map, value, &at),
            "items" => self.schema(value, &at)?,
            "additionalItems" => return Ok(()), // says something beside a list of items only
            "prefixItems" | "anyOf" | "allOf" => self.listed(value, &at)?,
            "oneOf" => return self.one_of(parts, map, value, &at),
            "$ref" => self.reference(value, &at)?,
            "required" => required(map, value, &at)?,
            "minProperties" | "maxProperties" => properties_count(map, key, value, &at)?,
            "minItems" | "maxItems" | "minLength" | "maxLength" => count(value, &at)?,
            "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" => {
                match bound(map, key, value, &at)? {
                    Some(made) => made,
                    None => return Ok(()),
                }
            }
            "multipleOf" => self.multiple_of(value, &at)?,
            "pattern" => {
                let text = string(value, &at)?;
                self.optional += regex::optional_parts(text);
                self.wide += regex::wide_parts(text, false);
                if self.optional > 2 * regex::OPTIONAL_MAX || self.wide > 2 * regex::WIDE_MAX {
                    let text = "too many repeated parts or classes in all patterns";
                    return Err(Failure::Limit(format!("schema at {at}: {text}")));
                }
                let made = regex::from_ecmascript(text).map_err(|e| {
                    let short = Value::from(text.chars().take(80).collect::<String>());
                    match format!("schema at {at}: {e:.200}: {short}") {
                        text if e.starts_with("too many") => Failure::Limit(text),
                        text => Failure::Unsupported(text),
                    }
                })?;
                Value::from(made)
            }
            "format" => return format(parts, value, &at),
            "uniqueItems" if *value == Value::Bool(false) => return Ok(()),
            "propertyNames" if any_name(value) => return Ok(()),
            "uniqueItems" | "propertyNames" => return Err(refused(key, path)),
            "$id" | "id" => return self.identity(value, &at, path),
            k if ANNOTATIONS.contains(&k) => return Ok(()),
            k if REFUSED.contains(&k) => return Err(refused(key, path)),
            _ => return Ok(()), // known to no draft: the standard says to ignore it
        };
        parts.out.insert(key.to_string(), made);
        Ok(())
    }

    /// References are resolved against the root, so a part with an address of its own would
    /// change what they mean.
    fn identity(&self, value: &Value, at: &str, path: &str) -> Result<(), Failure> {
        match value.as_str() {
            Some(id) if path != "$" && !id.starts_with('#') => {
                Err(unsupported(at, "an address of a part is not supported"))
            }
            _ => Ok(()),
        }
    }

    fn constant(&mut self, value: &Value, at: &str) -> Result<Value, Failure> {
        self.count(at)?;
        match value {
            Value::Number(n) => constant_number(n, at)?,
            Value::String(s) => constant_string(s, at)?,
            Value::Array(list) => {
                for v in list {
                    self.constant(v, at)?;
                }
            }
            Value::Object(map) => {
                for v in map.values() {
                    self.constant(v, at)?;
                }
            }
            _ => {}
        }
        Ok(value.clone())
    }

    fn named(&mut self, value: &'a Value, at: &str) -> Result<Value, Failure> {
        let mut out = Map::new();
        let map = object(value, at)?;
        if map.len() > PROPERTIES_MAX {
            let text = format!(
                "schema at {at}: {} properties, at most {PROPERTIES_MAX}",
                map.len()
            );
            return Err(Failure::Limit(text));
        }
        for (key, value) in map {
            out.insert(key.clone(), self.schema(value, &child(at, key))?);
        }
        Ok(Value::Object(out))
    }

    fn patterned(&mut self, value: &'a Value, at: &str) -> Result<Value, Failure> {
        let mut out = Map::new();
        let map = object(value, at)?;
        self.patterns += map.len();
        if self.patterns > PATTERNS_MAX {
            let text = format!("schema at {at}: more than {PATTERNS_MAX} patterns of properties");
            return Err(Failure::Limit(text));
        }
        for (key, value) in map {
            let path = child(at, key);
            let pattern = regex::from_ecmascript(key)
                .map_err(|e| unsupported(&path, &format!("{e:.200}")))?;
            if out.insert(pattern, self.schema(value, &path)?).is_some() {
                return Err(unsupported(&path, "the same pattern in another spelling"));
            }
        }
        Ok(Value::Object(out))
    }

    fn listed(&mut self, value: &'a Value, at: &str) -> Result<Value, Failure> {
        let list = array(value, at)?;
        let made: Result<Vec<_>, _> = (list.iter().enumerate())
            .map(|(i, v)| self.schema(v, &format!("{at}[{i}]")))
            .collect();
        Ok(Value::Array(made?))
    }

    /// The spelling of the drafts before 2020-12.
    fn tuple(
        &mut self,
        parts: &mut Parts,
        map: &'a Map<String, Value>,
        value: &'a Value,
        at: &str,
    ) -> Result<(), Failure> {
        if map.contains_key("prefixItems") {
            return Err(invalid(
                at,
                "must be one schema, since there is prefixItems",
            ));
        }
        let first = self.listed(value, at)?;
        parts.out.insert("prefixItems".into(), first);
        if let Some(rest) = map.get("additionalItems") {
            let rest = self.schema(rest, &at.replace(".items", ".additionalItems"))?;
            parts.out.insert("items".into(), rest);
        }
        Ok(())
    }

    /// The same as anyOf if no value can fit two branches; else not enforceable.
    fn one_of(
        &mut self,
        parts: &mut Parts,
        map: &Map<String, Value>,
        value: &'a Value,
        at: &str,
    ) -> Result<(), Failure> {
        let list = array(value, at)?;
        let search = disjoint::Search {
            resolve: &|text| self.references.resolve(text, at).ok(),
            work: &self.work,
        };
        let overlap = search.overlap(list);
        if self.work.spent() {
            let text = "it takes too long to tell that its branches exclude each other";
            return Err(Failure::Limit(format!(
                "schema at {at}: {text}; anyOf is supported"
            )));
        }
        if let Some((a, b)) = overlap {
            return Err(unsupported(
                at,
                &format!("cannot tell that [{a}] and [{b}] exclude each other; anyOf is supported"),
            ));
        }
        let made = self.listed(value, at)?;
        if map.contains_key("anyOf") {
            parts.also.push(json!({ "anyOf": made }));
        } else {
            parts.out.insert("anyOf".into(), made);
        }
        Ok(())
    }

    fn reference(&mut self, value: &'a Value, at: &str) -> Result<Value, Failure> {
        let text = string(value, at)?;
        let target = self.references.resolve(text, at)?;
        let next = self.targets.len();
        let number = *self.numbers.entry(target).or_insert(next);
        if number == next {
            self.targets.push((target, target_path(text)));
        }
        Ok(Value::from(format!("#/$defs/{number}")))
    }

    /// llguidance keeps a decimal of 32 bits, and the least common multiple of two in 32 bits.
    fn multiple_of(&mut self, value: &Value, at: &str) -> Result<Value, Failure> {
        let number = value
            .as_f64()
            .ok_or_else(|| invalid(at, "must be a number"))?;
        if number <= 0.0 || !number.is_finite() {
            return Err(invalid(at, "must be more than 0"));
        }
        let (mut coefficient, mut digits) = (number, 0);
        while coefficient.fract() != 0.0 && digits < 10 {
            coefficient *= 10.0;
            digits += 1;
        }
        let back = format!("{}e-{digits}", coefficient as u64).parse::<f64>();
        if coefficient.fract() != 0.0 || coefficient > 65535.0 || back != Ok(number) {
            return Err(unsupported(
                at,
                "only with at most 4 digits is it supported",
            ));
        }
        match &self.multiple {
            Some(first) if *first != number => self.multiples = Some(at.to_string()),
            _ => self.multiple = Some(number),
        }
        Ok(value.clone())
    }
}

fn refused(key: &str, path: &str) -> Failure {
    Failure::Unsupported(format!("keyword \"{key}\" at {path} is not supported"))
}

fn array<'a>(value: &'a Value, at: &str) -> Result<&'a Vec<Value>, Failure> {
    match value.as_array() {
        Some(list) if !list.is_empty() => Ok(list),
        _ => Err(invalid(at, "must be an array that is not empty")),
    }
}

fn object<'a>(value: &'a Value, at: &str) -> Result<&'a Map<String, Value>, Failure> {
    value
        .as_object()
        .ok_or_else(|| invalid(at, "must be an object"))
}

fn string<'a>(value: &'a Value, at: &str) -> Result<&'a str, Failure> {
    value
        .as_str()
        .ok_or_else(|| invalid(at, "must be a string"))
}

fn types(value: &Value, at: &str) -> Result<Value, Failure> {
    const KNOWN: [&str; 7] = [
        "null", "boolean", "integer", "number", "string", "array", "object",
    ];
    let one = [value.clone()];
    let list = match value {
        Value::Array(list) => &list[..],
        _ => &one[..],
    };
    let known = |v: &Value| v.as_str().is_some_and(|t| KNOWN.contains(&t));
    if list.is_empty() || !list.iter().all(known) {
        return Err(invalid(
            at,
            &format!("must be one of {} or a list of them", KNOWN.join(", ")),
        ));
    }
    Ok(value.clone())
}

pub fn count(value: &Value, at: &str) -> Result<Value, Failure> {
    let whole = value.as_f64().filter(|n| *n >= 0.0 && n.fract() == 0.0);
    match whole {
        None => Err(invalid(at, "must be a whole number, 0 or more")),
        Some(n) if n > COUNT_MAX as f64 => Err(unsupported(at, &format!("at most {COUNT_MAX}"))),
        Some(n) => Ok(Value::from(n as u64)),
    }
}

/// A double on the inner side of the bound; None for a draft 4 flag that does nothing.
fn bound(
    map: &Map<String, Value>,
    key: &str,
    value: &Value,
    at: &str,
) -> Result<Option<Value>, Failure> {
    let upper = key == "maximum" || key == "exclusiveMaximum";
    let value = match value {
        Value::Bool(false) if key.starts_with("exclusive") => return Ok(None),
        Value::Bool(true) if key.starts_with("exclusive") => {
            let plain = if upper { "maximum" } else { "minimum" };
            map.get(plain)
                .ok_or_else(|| invalid(at, &format!("needs {plain}")))?
        }
        value => value,
    };
    let number = value
        .as_f64()
        .ok_or_else(|| invalid(at, "must be a number"))?;
    let exact = (value.as_i64().map(i128::from)).or(value.as_u64().map(i128::from));
    let mut inner = number;
    if let Some(exact) = exact.filter(|n| n.abs() > EXACT) {
        if upper && number as i128 > exact {
            inner = inner.next_down();
        }
        if !upper && (number as i128) < exact {
            inner = inner.next_up();
        }
    }
    if if upper {
        inner < -BOUND_MAX
    } else {
        inner > BOUND_MAX
    } {
        return Err(unsupported(at, "at most 18 digits"));
    }
    if short(inner) {
        Ok(Some(Value::from(inner.clamp(-BOUND_MAX, BOUND_MAX))))
    } else {
        Err(unsupported(at, "too many digits"))
    }
}

/// Written without an exponent, so that ranges of digits stay small.
fn short(number: f64) -> bool {
    number.is_finite() && (number.abs() >= 1e17 || number.to_string().len() <= 24)
}

fn constant_number(n: &serde_json::Number, at: &str) -> Result<(), Failure> {
    let exact = n.as_i64().map(i128::from).or(n.as_u64().map(i128::from));
    let fits = match exact {
        Some(whole) => whole.abs() <= EXACT,
        None => n
            .as_f64()
            .is_some_and(|f| short(f) && f.abs() <= EXACT as f64),
    };
    if fits {
        Ok(())
    } else {
        Err(unsupported(at, &format!("{n} has too many digits")))
    }
}

/// Only the short escapes are ever written, so that each key has one spelling.
fn constant_string(s: &str, at: &str) -> Result<(), Failure> {
    let odd = |c: &char| (*c < ' ' && !"\u{8}\u{c}\n\r\t".contains(*c)) || *c == '\u{7f}';
    match s.chars().find(odd) {
        Some(c) => Err(unsupported(
            at,
            &format!("character U+{:04X} in a value", c as u32),
        )),
        None => Ok(()),
    }
}

fn format(parts: &mut Parts, value: &Value, at: &str) -> Result<(), Failure> {
    let name = string(value, at)?;
    let anchored = |rx: String| json!({ "pattern": format!("^(?:{rx})$") });
    parts.also.push(match name {
        "date" => anchored(DATE.into()),
        "time" => anchored(TIME.into()),
        "date-time" => anchored(format!("{DATE}T{TIME}")),
        "hostname" => json!({ "format": name, "maxLength": 253 }),
        "uri" => json!({ "format": name }),
        _ if FORMATS.contains(&name) => json!({ "format": name }),
        "int8" => json!({ "minimum": i8::MIN, "maximum": i8::MAX }),
        "uint8" => json!({ "minimum": 0, "maximum": u8::MAX }),
        "int16" => json!({ "minimum": i16::MIN, "maximum": i16::MAX }),
        "uint16" => json!({ "minimum": 0, "maximum": u16::MAX }),
        "int32" => json!({ "minimum": i32::MIN, "maximum": i32::MAX }),
        "uint" | "uint32" => json!({ "minimum": 0, "maximum": u32::MAX }),
        "int64" => json!({ "minimum": -BOUND_MAX, "maximum": BOUND_MAX }),
        "uint64" => json!({ "minimum": 0, "maximum": BOUND_MAX }),
        "float" | "double" | "password" => return Ok(()),
        _ => {
            let known = FORMATS.join(", ");
            let name = Value::from(name.chars().take(40).collect::<String>());
            return Err(unsupported(
                at,
                &format!("{name} is not supported; supported: date, time, date-time, uri, {known}"),
            ));
        }
    });
    Ok(())
}

fn size(value: &Value) -> usize {
    match value {
        Value::Object(map) => 1 + map.values().map(size).sum::<usize>(),
        Value::Array(list) => 1 + list.iter().map(size).sum::<usize>(),
        _ => 1,
    }
}

fn alternatives(value: &Value) -> usize {
    value.as_object().map_or(1, alternatives_of)
}

fn alternatives_of(map: &Map<String, Value>) -> usize {
    let mut n: usize = 1;
    for key in ["anyOf", "oneOf", "enum"] {
        if let Some(Value::Array(list)) = map.get(key) {
            let inner: usize = list.iter().map(alternatives).sum();
            n = n.saturating_mul(inner.max(1));
        }
    }
    if let Some(Value::Array(list)) = map.get("allOf") {
        n = list
            .iter()
            .fold(n, |n, v| n.saturating_mul(alternatives(v)));
    }
    n
}

/// Whether two schemas may have to be made one.
fn intersects(map: &Map<String, Value>) -> bool {
    let says = |k: &&String| *k != "type" && !ANNOTATIONS.contains(&k.as_str());
    let alone = map.keys().filter(says).count() <= 1;
    let applied = ["anyOf", "oneOf", "$ref"]
        .iter()
        .any(|k| map.contains_key(*k));
    map.contains_key("allOf") || map.contains_key("patternProperties") || (applied && !alone)
}

fn product_check(map: &Map<String, Value>, path: &str) -> Result<(), Failure> {
    if !map.keys().any(|k| APPLICATORS.contains(&k.as_str())) {
        return Ok(());
    }
    let whole = 1 + map.values().map(size).sum::<usize>();
    let product = alternatives_of(map).saturating_mul(whole);
    let lone = map.len() == 1 || (map.len() == 2 && map.contains_key("type"));
    if !lone && product > PRODUCT_MAX {
        return Err(Failure::Limit(format!(
            "schema at {path}: too many combinations of its alternatives"
        )));
    }
    Ok(())
}
