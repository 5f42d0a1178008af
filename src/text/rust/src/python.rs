// SPDX-License-Identifier: Apache-2.0
//! What Python's jinja2 has and minijinja lacks: methods of str, `tojson` without HTML escapes,
//! `strftime`, repr of floats.
//!
//! The measure is the reference library's rendering of published templates
//! (tools/template_golden.py), not completeness.

use std::fmt::Write;

use minijinja::value::{from_args, Kwargs, Tuple, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};

/// Python's idea of white space in str: Unicode's, and the four separators U+001C..U+001F.
pub fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

fn invalid(text: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidOperation, text)
}

/// repr of a float: the shortest digits that give it back, an exponent below 1e-4 and from 1e16.
pub fn float_text(x: f64) -> String {
    if x.is_nan() {
        return "nan".into();
    }
    if x.is_infinite() {
        return if x < 0.0 { "-inf" } else { "inf" }.into();
    }
    let size = x.abs();
    if size != 0.0 && !(1e-4..1e16).contains(&size) {
        let text = format!("{x:e}");
        let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let (sign, number) = match exponent.strip_prefix('-') {
            Some(number) => ('-', number),
            None => ('+', exponent),
        };
        return format!("{digits}e{sign}{number:0>2}");
    }
    let mut text = x.to_string();
    if !text.contains('.') {
        text.push_str(".0");
    }
    text
}

fn is_float(value: &Value) -> bool {
    value.kind() == ValueKind::Number && !value.is_integer()
}

/// What `{{ value }}` writes.
pub fn write_value(out: &mut minijinja::Output, value: &Value) -> Result<(), Error> {
    let written = if is_float(value) {
        match f64::try_from(value.clone()) {
            Ok(x) => out.write_str(&float_text(x)),
            Err(_) => write!(out, "{value}"),
        }
    } else if let Some(text) = value.as_str() {
        out.write_str(text)
    } else {
        write!(out, "{value}")
    };
    written.map_err(Error::from)
}

// ---- tojson: json.dumps(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False)

struct Dumper<'a, 'b, 'c> {
    state: &'a State<'b, 'c>,
    out: String,
    ascii: bool,
    sort: bool,
    indent: Option<String>,
    item: String,
    colon: String,
}

const DEPTH_MAX: usize = 200;
const JSON_MAX: usize = 32 << 20;

impl Dumper<'_, '_, '_> {
    fn text(&mut self, text: &str) {
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                c if (c as u32) < 0x20 => {
                    let _ = write!(self.out, "\\u{:04x}", c as u32);
                }
                c if self.ascii && !c.is_ascii() => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        let _ = write!(self.out, "\\u{unit:04x}");
                    }
                }
                c => self.out.push(c),
            }
        }
        self.out.push('"');
    }

    fn line(&mut self, depth: usize) {
        if let Some(indent) = &self.indent {
            self.out.push('\n');
            for _ in 0..depth {
                self.out.push_str(indent);
            }
        }
    }

    fn key(&mut self, key: &Value) -> Result<(), Error> {
        match key.kind() {
            ValueKind::String => self.text(key.as_str().unwrap_or("")),
            ValueKind::Number | ValueKind::Bool | ValueKind::None => {
                let mut inner = Dumper {
                    out: String::new(),
                    indent: None,
                    item: String::new(),
                    colon: String::new(),
                    ..*self
                };
                inner.value(key, 0)?;
                self.text(&inner.out);
            }
            kind => return Err(invalid(format!("tojson: a key may not be {kind}"))),
        }
        Ok(())
    }

    fn map(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        let mut keys: Vec<Value> = value.try_iter()?.collect();
        if keys.is_empty() {
            self.out.push_str("{}");
            return Ok(());
        }
        if self.sort {
            keys.sort();
        }
        self.out.push('{');
        for (i, key) in keys.iter().enumerate() {
            if i > 0 {
                self.out.push_str(&self.item.clone());
            }
            self.line(depth + 1);
            self.key(key)?;
            self.out.push_str(&self.colon.clone());
            self.value(&value.get_item(key)?, depth + 1)?;
        }
        self.line(depth);
        self.out.push('}');
        Ok(())
    }

    fn list(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        self.out.push('[');
        let mut any = false;
        for item in value.try_iter()? {
            if any {
                self.out.push_str(&self.item.clone());
            }
            any = true;
            self.line(depth + 1);
            self.value(&item, depth + 1)?;
        }
        if any {
            self.line(depth);
        }
        self.out.push(']');
        Ok(())
    }

    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        self.state.consume_fuel(1)?;
        if depth > DEPTH_MAX {
            return Err(invalid("tojson: nested too deeply"));
        }
        if self.out.len() > JSON_MAX {
            return Err(Error::from(ErrorKind::OutOfFuel));
        }
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self
                .out
                .push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number if is_float(value) => {
                let text = float_text(f64::try_from(value.clone())?);
                self.out.push_str(match text.as_str() {
                    "nan" => "NaN",
                    "inf" => "Infinity",
                    "-inf" => "-Infinity",
                    other => other,
                });
            }
            ValueKind::Number => {
                let _ = write!(self.out, "{value}");
            }
            ValueKind::String => self.text(value.as_str().unwrap_or("")),
            ValueKind::Map => self.map(value, depth)?,
            ValueKind::Seq | ValueKind::Iterable => self.list(value, depth)?,
            kind => return Err(invalid(format!("tojson: {kind} has no JSON form"))),
        }
        Ok(())
    }
}

pub fn tojson(state: &State, value: &Value, kwargs: Kwargs) -> Result<Value, Error> {
    let indent: Option<Value> = kwargs.get("indent")?;
    let indent = match indent {
        Some(v) if v.kind() == ValueKind::Number => Some(" ".repeat(usize::try_from(v)?.min(64))),
        Some(v) => v.as_str().map(|text| text.chars().take(64).collect()),
        None => None,
    };
    let separators: Option<Vec<String>> = kwargs.get("separators")?;
    let (item, colon) = match separators.as_deref() {
        Some([item, colon]) => (item.clone(), colon.clone()),
        Some(_) => return Err(invalid("tojson: separators are two strings")),
        None => (
            if indent.is_some() { "," } else { ", " }.to_string(),
            ": ".to_string(),
        ),
    };
    let ascii: Option<bool> = kwargs.get("ensure_ascii")?;
    let sort: Option<bool> = kwargs.get("sort_keys")?;
    kwargs.assert_all_used()?;
    let mut dumper = Dumper {
        state,
        out: String::new(),
        ascii: ascii.unwrap_or(false),
        sort: sort.unwrap_or(false),
        indent,
        item,
        colon,
    };
    dumper.value(value, 0)?;
    state.consume_fuel((dumper.out.len() / 64) as u64)?;
    Ok(Value::from(dumper.out))
}

// ---- methods ----

fn matcher(chars: Option<&str>) -> impl Fn(char) -> bool + '_ {
    move |c| chars.map_or_else(|| is_space(c), |set| set.contains(c))
}

fn strip(text: &str, chars: Option<&str>, left: bool, right: bool) -> Value {
    let found = matcher(chars);
    let mut rest = text;
    if left {
        rest = rest.trim_start_matches(&found);
    }
    if right {
        rest = rest.trim_end_matches(&found);
    }
    Value::from(rest)
}

/// str.split and str.rsplit without a separator: runs of white space. What is left after `most`
/// cuts keeps its far end.
fn split_space(text: &str, most: i64, from_right: bool) -> Vec<String> {
    let near = |rest: &'_ str| -> usize {
        if from_right {
            rest.trim_end_matches(is_space).len()
        } else {
            rest.len() - rest.trim_start_matches(is_space).len()
        }
    };
    let mut parts = Vec::new();
    let mut rest = text;
    loop {
        let at = near(rest);
        rest = if from_right { &rest[..at] } else { &rest[at..] };
        if rest.is_empty() {
            break;
        }
        let cut = if from_right {
            rest.rfind(is_space)
        } else {
            rest.find(is_space)
        };
        let (Some(at), true) = (cut, most < 0 || (parts.len() as i64) < most) else {
            parts.push(rest.to_string());
            break;
        };
        if from_right {
            let width = rest[at..].chars().next().map_or(1, char::len_utf8);
            parts.push(rest[at + width..].to_string());
            rest = &rest[..at];
        } else {
            parts.push(rest[..at].to_string());
            rest = &rest[at..];
        }
    }
    if from_right {
        parts.reverse();
    }
    parts
}

fn split(
    text: &str,
    separator: Option<&str>,
    most: Option<i64>,
    from_right: bool,
) -> Result<Value, Error> {
    let most = most.unwrap_or(-1);
    let Some(separator) = separator else {
        return Ok(split_space(text, most, from_right)
            .into_iter()
            .map(Value::from)
            .collect());
    };
    if separator.is_empty() {
        return Err(invalid("empty separator"));
    }
    let limit = if most < 0 {
        usize::MAX
    } else {
        most as usize + 1
    };
    if from_right {
        let mut parts: Vec<Value> = text.rsplitn(limit, separator).map(Value::from).collect();
        parts.reverse();
        return Ok(parts.into());
    }
    Ok(text.splitn(limit, separator).map(Value::from).collect())
}

fn split_lines(text: &str, keep: bool) -> Value {
    let ends = |c: char| {
        matches!(
            c,
            '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'
                ..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}'
        )
    };
    let mut lines = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find(ends) {
        let mut next = at + rest[at..].chars().next().map_or(1, char::len_utf8);
        if rest[at..].starts_with("\r\n") {
            next = at + 2;
        }
        lines.push(Value::from(&rest[..if keep { next } else { at }]));
        rest = &rest[next..];
    }
    if !rest.is_empty() {
        lines.push(Value::from(rest));
    }
    lines.into()
}

fn partition(text: &str, separator: &str, from_right: bool) -> Result<Value, Error> {
    if separator.is_empty() {
        return Err(invalid("empty separator"));
    }
    let found = if from_right {
        text.rfind(separator)
    } else {
        text.find(separator)
    };
    let parts = match (found, from_right) {
        (Some(at), _) => [&text[..at], separator, &text[at + separator.len()..]],
        (None, false) => [text, "", ""],
        (None, true) => ["", "", text],
    };
    Ok(Value::from(Tuple::from(parts.map(Value::from))))
}

fn justify(
    state: &State,
    text: &str,
    width: i64,
    fill: Option<&str>,
    method: &str,
) -> Result<Value, Error> {
    let mut letters = fill.unwrap_or(" ").chars();
    let (Some(letter), None) = (letters.next(), letters.next()) else {
        return Err(invalid(format!("{method}: the fill is one character")));
    };
    let have = text.chars().count();
    let room = usize::try_from(width).unwrap_or(0).saturating_sub(have);
    state.consume_fuel((room / 16) as u64)?; // paid before it is made
    if room > JSON_MAX / 4 {
        return Err(Error::from(ErrorKind::OutOfFuel));
    }
    let left = match method {
        "rjust" => room,
        "center" => room / 2 + (room & width as usize & 1),
        _ => 0,
    };
    let mut out = String::with_capacity(text.len() + room * letter.len_utf8());
    out.extend(std::iter::repeat_n(letter, left));
    out.push_str(text);
    out.extend(std::iter::repeat_n(letter, room - left));
    Ok(Value::from(out))
}

fn zfill(state: &State, text: &str, width: i64) -> Result<Value, Error> {
    let (sign, digits) = match text.chars().next() {
        Some(c @ ('+' | '-')) => (Some(c), &text[1..]),
        _ => (None, text),
    };
    let filled = justify(
        state,
        digits,
        width - sign.is_some() as i64,
        Some("0"),
        "rjust",
    )?;
    Ok(match sign {
        Some(c) => Value::from(format!("{c}{filled}")),
        None => filled,
    })
}

/// split's arguments by name or place.
fn split_arguments(args: &[Value]) -> Result<(Option<String>, Option<i64>), Error> {
    let (separator, most, kwargs): (Option<String>, Option<i64>, Kwargs) = from_args(args)?;
    let separator = match separator {
        Some(text) => Some(text),
        None => kwargs.get("sep")?,
    };
    let most = match most {
        Some(number) => Some(number),
        None => kwargs.get("maxsplit")?,
    };
    kwargs.assert_all_used()?;
    Ok((separator, most))
}

fn text_method(
    state: &State,
    text: &str,
    method: &str,
    args: &[Value],
) -> Result<Option<Value>, Error> {
    Ok(Some(match method {
        "strip" | "lstrip" | "rstrip" => {
            let (chars,): (Option<&str>,) = from_args(args)?;
            strip(text, chars, method != "rstrip", method != "lstrip")
        }
        "split" | "rsplit" => {
            let (separator, most) = split_arguments(args)?;
            split(text, separator.as_deref(), most, method == "rsplit")?
        }
        "splitlines" => {
            let (keep,): (Option<bool>,) = from_args(args)?;
            split_lines(text, keep.unwrap_or(false))
        }
        "partition" | "rpartition" => {
            let (separator,): (&str,) = from_args(args)?;
            partition(text, separator, method == "rpartition")?
        }
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            Value::from(text.strip_prefix(prefix).unwrap_or(text))
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            Value::from(text.strip_suffix(suffix).unwrap_or(text))
        }
        "ljust" | "rjust" | "center" => {
            let (width, fill): (i64, Option<&str>) = from_args(args)?;
            justify(state, text, width, fill, method)?
        }
        "zfill" => {
            let (width,): (i64,) = from_args(args)?;
            zfill(state, text, width)?
        }
        "index" => {
            let (what,): (&str,) = from_args(args)?;
            let at = text
                .find(what)
                .ok_or_else(|| invalid("substring not found"))?;
            Value::from(text[..at].chars().count())
        }
        "casefold" => Value::from(text.to_lowercase()),
        "swapcase" => Value::from(
            text.chars()
                .flat_map(|c| -> Vec<char> {
                    if c.is_uppercase() {
                        c.to_lowercase().collect()
                    } else {
                        c.to_uppercase().collect()
                    }
                })
                .collect::<String>(),
        ),
        _ => return Ok(None),
    }))
}

/// Ours first, then minijinja-contrib's.
pub fn method(
    state: &mut State,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    if let Some(text) = value.as_str() {
        if let Some(result) = text_method(state, text, method, args)? {
            return Ok(result);
        }
    }
    // Python takes `dict.from_keys` for the type dict[...] and calls that: dict(pairs). Published
    // templates live on it.
    if method == "from_keys" && state.lookup("dict").as_ref() == Some(value) {
        let (pairs,): (Value,) = from_args(args)?;
        return dict_of(state, &pairs);
    }
    minijinja_contrib::pycompat::unknown_method_callback(state, value, method, args)
}

fn dict_of(state: &State, pairs: &Value) -> Result<Value, Error> {
    let mut made = Vec::new();
    for pair in pairs.try_iter()? {
        state.consume_fuel(1)?;
        let mut items = pair.try_iter()?;
        let (Some(key), Some(value), None) = (items.next(), items.next(), items.next()) else {
            return Err(invalid("dict: not a list of pairs"));
        };
        made.push((key, value));
    }
    Ok(Value::from_pairs(made))
}

/// jinja2's tests `iterable` and `sequence`: None is neither (to minijinja it is an empty list).
pub fn is_iterable(value: &Value) -> bool {
    value.is_undefined() || value.as_str().is_some() || is_container(value)
}

pub fn is_sequence(value: &Value) -> bool {
    value.is_undefined()
        || value.as_str().is_some()
        || matches!(
            value.kind(),
            ValueKind::Map | ValueKind::Seq | ValueKind::Bytes
        )
}

fn is_container(value: &Value) -> bool {
    matches!(
        value.kind(),
        ValueKind::Map | ValueKind::Seq | ValueKind::Iterable | ValueKind::Bytes
    )
}

/// What a loop runs over: None is an error (to minijinja an empty list).
pub fn iterated(value: Value) -> Result<Value, Error> {
    if value.is_none() {
        return Err(invalid("None is not iterable"));
    }
    Ok(value)
}

/// jinja2's filter `trim`.
pub fn trim(value: &Value, chars: Option<String>) -> Value {
    match value.as_str() {
        Some(text) => strip(text, chars.as_deref(), true, true),
        None => strip(&value.to_string(), chars.as_deref(), true, true),
    }
}

// ---- strftime, in UTC ----

struct Moment {
    year: i64,
    month: usize,
    day: i64,
    year_day: i64,
    week_day: usize, // 0 is Sunday
    second_of_day: i64,
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = [
    "Sunday",
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
];

fn days_before_year(year: i64) -> i64 {
    let y = year - 1;
    365 * y + y.div_euclid(4) - y.div_euclid(100) + y.div_euclid(400)
}

fn moment(unix: i64) -> Moment {
    let unix = unix.clamp(-62_135_596_800, 253_402_300_799); // years 1 to 9999, as Python has it
    let days = unix.div_euclid(86_400) + days_before_year(1970);
    let mut year = days / 366 + 1;
    while days_before_year(year + 1) <= days {
        year += 1;
    }
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let lengths = [31, 28 + leap as i64, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let year_day = days - days_before_year(year);
    let (mut month, mut day) = (0, year_day);
    while day >= lengths[month] {
        day -= lengths[month];
        month += 1;
    }
    Moment {
        year,
        month,
        day: day + 1,
        year_day: year_day + 1,
        week_day: (days + 1).rem_euclid(7) as usize, // day 0, 1 January of year 1, was a Monday
        second_of_day: unix.rem_euclid(86_400),
    }
}

pub fn strftime(unix: i64, format: &str) -> String {
    let m = moment(unix);
    let (hour, minute, second) = (
        m.second_of_day / 3600,
        m.second_of_day / 60 % 60,
        m.second_of_day % 60,
    );
    let hour12 = if hour % 12 == 0 { 12 } else { hour % 12 };
    let mut out = String::new();
    let mut letters = format.chars();
    while let Some(c) = letters.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut directive = letters.next();
        let plain = directive == Some('-'); // no leading zero
        if plain {
            directive = letters.next();
        }
        let mut number = |value: i64, width: usize| {
            if plain {
                write!(out, "{value}")
            } else {
                write!(out, "{value:0width$}")
            }
        };
        let _ = match directive {
            Some('Y') => number(m.year, 1),
            Some('y') => number(m.year % 100, 2),
            Some('m') => number(m.month as i64 + 1, 2),
            Some('d') => number(m.day, 2),
            Some('j') => number(m.year_day, 3),
            Some('H') => number(hour, 2),
            Some('I') => number(hour12, 2),
            Some('M') => number(minute, 2),
            Some('S') => number(second, 2),
            Some('f') => number(0, 6),
            Some('w') => number(m.week_day as i64, 1),
            Some('u') => number((m.week_day as i64 + 6) % 7 + 1, 1),
            Some('e') => write!(out, "{:2}", m.day),
            Some('B') => out.write_str(MONTHS[m.month]),
            Some('b' | 'h') => out.write_str(&MONTHS[m.month][..3]),
            Some('A') => out.write_str(DAYS[m.week_day]),
            Some('a') => out.write_str(&DAYS[m.week_day][..3]),
            Some('p') => out.write_str(if hour < 12 { "AM" } else { "PM" }),
            Some('F') => write!(out, "{}-{:02}-{:02}", m.year, m.month + 1, m.day),
            Some('T') => write!(out, "{hour:02}:{minute:02}:{second:02}"),
            Some('D') => write!(out, "{:02}/{:02}/{:02}", m.month + 1, m.day, m.year % 100),
            Some('R') => write!(out, "{hour:02}:{minute:02}"),
            Some('Z' | 'z') => Ok(()), // a naive datetime has none
            Some('%') => out.write_str("%"),
            Some(other) => write!(out, "%{other}"),
            None => out.write_str("%"),
        };
    }
    out
}
