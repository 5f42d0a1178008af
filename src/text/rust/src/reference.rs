// SPDX-License-Identifier: Apache-2.0
//! What a $ref of a schema leads to: the schema itself, a pointer into it, an anchor.

use std::collections::HashMap;

use serde_json::Value;

use crate::schema::{child, invalid, unsupported};
use crate::Failure;

pub struct References<'a> {
    root: &'a Value,
    id: &'a str,
    anchors: HashMap<&'a str, &'a Value>,
}

impl<'a> References<'a> {
    pub fn new(root: &'a Value) -> References<'a> {
        let id = ["$id", "id"].iter().find_map(|k| root.get(k)?.as_str());
        let mut references = References {
            root,
            id: id.unwrap_or("").trim_end_matches('#'),
            anchors: HashMap::new(),
        };
        references.find_anchors(root);
        references
    }

    /// The first of each name, since names are looked up once for each reference.
    fn find_anchors(&mut self, value: &'a Value) {
        match value {
            Value::Object(map) => {
                let text = |k: &&str| map.get(*k).and_then(Value::as_str);
                let plain = ["$anchor", "$dynamicAnchor"].iter().filter_map(text);
                let ids = ["$id", "id"].iter().filter_map(text);
                for name in plain.chain(ids.filter_map(|id| id.strip_prefix('#'))) {
                    self.anchors.entry(name).or_insert(value);
                }
                map.values().for_each(|v| self.find_anchors(v));
            }
            Value::Array(list) => list.iter().for_each(|v| self.find_anchors(v)),
            _ => {}
        }
    }

    /// Takes no more than the length of `text`.
    pub fn resolve(&self, text: &str, at: &str) -> Result<&'a Value, Failure> {
        let quoted = || Value::from(text.chars().take(80).collect::<String>());
        let fragment = match text.strip_prefix(self.id).unwrap_or(text) {
            "" => "",
            local => local.strip_prefix('#').ok_or_else(|| {
                let quoted = quoted();
                let text = format!("{quoted} leads out of the schema; nothing is fetched");
                unsupported(at, &text)
            })?,
        };
        let fragment = percent_decode(fragment)
            .ok_or_else(|| invalid(at, &format!("{} is no reference", quoted())))?;
        let target = if fragment.is_empty() {
            Some(self.root)
        } else if fragment.starts_with('/') {
            self.root
                .pointer(&fragment)
                .filter(|_| leads_to_schema(&fragment))
        } else {
            self.anchors.get(fragment.as_str()).copied()
        };
        target.ok_or_else(|| invalid(at, &format!("{} leads to no schema", quoted())))
    }
}

pub fn target_path(reference: &str) -> String {
    let fragment = reference
        .split_once('#')
        .map_or("", |(_, fragment)| fragment);
    match fragment.strip_prefix('/') {
        Some(pointer) => pointer.split('/').take(100).fold("$".into(), |path, key| {
            let key = key.replace("~1", "/").replace("~0", "~");
            match key.parse::<u32>() {
                Ok(index) => format!("{path}[{index}]"),
                Err(_) => child(&path, &key),
            }
        }),
        None if fragment.is_empty() => "$".into(),
        None => format!("#{fragment:.64}"),
    }
}

fn percent_decode(text: &str) -> Option<String> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(b) = bytes.next() {
        if b != b'%' {
            out.push(b);
            continue;
        }
        let high = (bytes.next()? as char).to_digit(16)?;
        out.push((high * 16 + (bytes.next()? as char).to_digit(16)?) as u8);
    }
    String::from_utf8(out).ok()
}

/// Whether a pointer ends at a schema, not at a list or table of schemas or within a value.
fn leads_to_schema(pointer: &str) -> bool {
    #[derive(PartialEq)]
    enum Place {
        Schema,
        Table,
        List,
        ListOrSchema,
        Unknown,
        Data,
    }
    let mut place = Place::Schema;
    for token in pointer.split('/').skip(1) {
        let index = token.bytes().all(|b| b.is_ascii_digit());
        place = match place {
            Place::ListOrSchema if index => Place::Schema,
            Place::Schema | Place::ListOrSchema => match token {
                "properties" | "patternProperties" | "$defs" | "definitions" => Place::Table,
                "dependentSchemas" | "dependencies" => Place::Table,
                "allOf" | "anyOf" | "oneOf" | "prefixItems" => Place::List,
                "items" => Place::ListOrSchema,
                "additionalProperties" | "additionalItems" | "not" | "if" | "then" => Place::Schema,
                "else" | "contains" | "propertyNames" => Place::Schema,
                "unevaluatedItems" | "unevaluatedProperties" | "contentSchema" => Place::Schema,
                "enum" | "const" | "default" | "examples" | "required" => Place::Data,
                _ => Place::Unknown,
            },
            Place::Table | Place::List => Place::Schema,
            Place::Unknown => Place::Unknown,
            Place::Data => Place::Data,
        };
    }
    !matches!(place, Place::Table | Place::List | Place::Data)
}
