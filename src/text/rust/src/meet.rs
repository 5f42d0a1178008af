// SPDX-License-Identifier: Apache-2.0
//! How many patterns of a rewritten schema meet in one string.
//!
//! derivre's intersection of n expressions with w alternatives each takes w to the n-th time and
//! memory in one step, before it looks at its limits. So each place where schemas are combined is
//! walked with the paths of the values below it, and what meets at one path is weighed.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use crate::regex;

/// Doublings: 2^16 alternatives take some 60 ms.
const WEIGHT_MAX: u32 = 16;
const STEPS_MAX: usize = 100_000;
const DEPTH_MAX: usize = 12;

/// How many doublings one expression is worth among others.
pub fn weight(regex: &str) -> u32 {
    let parts = regex.bytes().filter(|b| *b == b'|').count() + regex::optional_parts(regex);
    1 + (parts + 1).ilog2()
}

/// One step of a path, below a schema.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Below<'a> {
    Name(&'a str),
    Index(usize),
    Names, // all other names, or those of a pattern
    Items,
    Any,
}

/// A path: 0 is the value itself, another its number in Walk::paths.
type Path = u32;

struct Walk<'a> {
    defs: Option<&'a Map<String, Value>>,
    paths: HashMap<(Path, Below<'a>), Path>, // by the path above: names are long
    own: HashMap<*const Map<String, Value>, Met>, // so are patterns
    seen: HashSet<(&'a str, Path)>,
    steps: usize,
    wild: bool, // names and all other names, or items and all other items, may be the same ones
    one: bool,  // so they count as one
}

#[derive(Clone, Copy, Default)]
struct Met {
    n: u32,
    weight: u32,
}

type Places = HashMap<Path, Met>;

/// False if too many meet, or if it would take too long to know.
pub fn bearable(root: &Map<String, Value>) -> bool {
    let defs = root.get("$defs").and_then(Value::as_object);
    let mut walk = Walk {
        defs,
        paths: HashMap::new(),
        own: HashMap::new(),
        seen: HashSet::new(),
        steps: 0,
        wild: false,
        one: false,
    };
    walk.nodes(root)
}

fn add(to: &mut Places, path: Path, met: Met) {
    let at = to.entry(path).or_default();
    at.n += met.n;
    at.weight += met.weight;
}

fn own(map: &Map<String, Value>) -> Met {
    let mut met = Met::default();
    if let Some(pattern) = map.get("pattern").and_then(Value::as_str) {
        met = Met {
            n: 1,
            weight: weight(pattern),
        };
    }
    if map.contains_key("format") {
        met = Met {
            n: met.n + 1,
            weight: met.weight + 5,
        };
    }
    if map.contains_key("minLength") || map.contains_key("maxLength") {
        met = Met {
            n: met.n + 1,
            weight: met.weight + 1,
        };
    }
    met
}

/// How many schemas apply to the same value here, keywords of its own as one.
fn combined(map: &Map<String, Value>) -> usize {
    let aside = |k: &str| {
        matches!(
            k,
            "type" | "$defs" | "x-guidance" | "$ref" | "allOf" | "anyOf"
        )
    };
    let has = |k: &str| map.contains_key(k) as usize;
    let all = map
        .get("allOf")
        .and_then(Value::as_array)
        .map_or(0, Vec::len);
    map.keys().any(|k| !aside(k)) as usize
        + has("$ref")
        + has("anyOf")
        + all
        + has("patternProperties")
}

impl<'a> Walk<'a> {
    fn bearable_at(&mut self, map: &'a Map<String, Value>, one: bool) -> bool {
        let mut places = Places::new();
        self.paths.clear();
        self.seen.clear();
        (self.wild, self.one) = (false, one);
        self.collect(map, 0, 0, &mut places);
        let heavy = |met: &Met| met.n > 1 && met.weight > WEIGHT_MAX;
        self.steps <= STEPS_MAX && !places.values().any(heavy)
    }

    fn step(&mut self, path: Path, below: Below<'a>) -> Path {
        let below = if self.one { Below::Any } else { below };
        if let Below::Name(name) = below {
            self.steps += name.len() / 64;
        }
        let next = self.paths.len() as Path + 1;
        *self.paths.entry((path, below)).or_insert(next)
    }

    fn own(&mut self, map: &'a Map<String, Value>) -> Met {
        *self.own.entry(map).or_insert_with(|| own(map))
    }

    /// Every schema of the document that combines others.
    fn nodes(&mut self, map: &'a Map<String, Value>) -> bool {
        let both = combined(map) > 1 || self.own(map).n > 1;
        if both && !(self.bearable_at(map, false) && (!self.wild || self.bearable_at(map, true))) {
            return false;
        }
        map.values().all(|value| match value {
            Value::Object(map) => self.nodes(map),
            Value::Array(list) => list
                .iter()
                .filter_map(Value::as_object)
                .all(|m| self.nodes(m)),
            _ => true,
        })
    }

    fn collect(&mut self, map: &'a Map<String, Value>, path: Path, depth: usize, to: &mut Places) {
        self.steps += 1;
        if self.steps > STEPS_MAX {
            return;
        }
        let met = self.own(map);
        if met.n > 0 {
            add(to, path, met);
        }
        if let Some(name) = map.get("$ref").and_then(Value::as_str) {
            let number = name.strip_prefix("#/$defs/").unwrap_or("");
            let target = self
                .defs
                .and_then(|d| d.get(number))
                .and_then(Value::as_object);
            if let Some(target) = target.filter(|_| self.seen.insert((name, path))) {
                self.collect(target, path, depth, to);
            }
        }
        if let Some(Value::Array(list)) = map.get("allOf") {
            for inner in list.iter().filter_map(Value::as_object) {
                self.collect(inner, path, depth, to);
            }
        }
        self.collect_any(map, path, depth, to);
        if depth < DEPTH_MAX {
            self.collect_below(map, path, depth + 1, to);
        }
    }

    /// Branches of anyOf exclude each other here: the heaviest counts.
    fn collect_any(
        &mut self,
        map: &'a Map<String, Value>,
        path: Path,
        depth: usize,
        to: &mut Places,
    ) {
        let Some(Value::Array(list)) = map.get("anyOf") else {
            return;
        };
        let mut most = Places::new();
        for inner in list.iter().filter_map(Value::as_object) {
            let mut places = Places::new();
            self.collect(inner, path, depth, &mut places);
            self.steps += places.len() / 8;
            for (path, met) in places {
                let at = most.entry(path).or_default();
                *at = Met {
                    n: at.n.max(met.n),
                    weight: at.weight.max(met.weight),
                };
            }
        }
        for (path, met) in most {
            add(to, path, met);
        }
    }

    fn collect_below(
        &mut self,
        map: &'a Map<String, Value>,
        path: Path,
        depth: usize,
        to: &mut Places,
    ) {
        for key in ["properties", "patternProperties"] {
            let named = map.get(key).and_then(Value::as_object);
            for (name, inner) in named.into_iter().flatten() {
                let below = match key {
                    "properties" => Below::Name(name),
                    _ => Below::Names,
                };
                self.wild |= below == Below::Names;
                self.collect_at(inner, path, below, depth, to);
            }
        }
        for (key, below) in [
            ("additionalProperties", Below::Names),
            ("items", Below::Items),
        ] {
            let inner = map.get(key);
            if inner.is_some_and(|v| v.as_object().is_some_and(|m| !m.is_empty())) {
                self.wild = true;
                self.collect_at(&map[key], path, below, depth, to);
            }
        }
        if let Some(Value::Array(list)) = map.get("prefixItems") {
            self.wild |= map.contains_key("items");
            for (i, inner) in list.iter().enumerate() {
                self.collect_at(inner, path, Below::Index(i), depth, to);
            }
        }
    }

    fn collect_at(
        &mut self,
        schema: &'a Value,
        path: Path,
        below: Below<'a>,
        depth: usize,
        to: &mut Places,
    ) {
        if let Some(map) = schema.as_object() {
            let path = self.step(path, below);
            self.collect(map, path, depth, to);
        }
    }
}
