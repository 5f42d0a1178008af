// SPDX-License-Identifier: Apache-2.0
//! Prefill: the last message, an assistant's, is left open for the model to go on with.
//!
//! Only the template knows where a message's text ends and its end of turn begins. So a tag goes
//! behind the text before rendering, and the rendered text is cut where the tag stands last. The
//! tag is a word of a private character that occurs nowhere else, and a blank: where the blank is
//! gone the template trims the text, and would have trimmed the blanks before the tag too. This is
//! the reference library's rule; its tag is in plain letters, which filters can change more easily.

use serde_json::Value as Json;

use crate::guard;
use crate::python::is_space;
use crate::Failure;

/// More than one, so that a template which looks at single characters does not write the tag.
const LETTERS: usize = 4;

pub struct Tag {
    text: String,
}

fn invalid(text: &str) -> Failure {
    Failure::Invalid(format!("messages: {text}"))
}

/// The text to go on with: the content, or the last part of it that has text.
fn open_text(message: &mut Json) -> Option<&mut String> {
    match message.get_mut("content")? {
        Json::String(text) => Some(text),
        Json::Array(parts) => {
            parts
                .iter_mut()
                .rev()
                .find_map(|part| match part.get_mut("text")? {
                    Json::String(text) => Some(text),
                    _ => None,
                })
        }
        _ => None,
    }
}

impl Tag {
    /// Puts a tag behind the text of the last message.
    pub fn put(template: &str, messages: &mut Json, tools: &Json) -> Result<Tag, Failure> {
        let letter = guard::private_letters(template, &[messages, tools])
            .next()
            .ok_or_else(|| invalid("no private character is left"))?;
        let last = messages
            .as_array_mut()
            .and_then(|list| list.last_mut())
            .ok_or_else(|| invalid("there is none to continue"))?;
        if last.get("role").and_then(Json::as_str) != Some("assistant") {
            return Err(invalid(
                "only a last message of role \"assistant\" can be continued",
            ));
        }
        // The template writes the calls behind the text: they would be cut off without a word.
        if last.get("tool_calls").is_some_and(|calls| {
            calls.as_array().is_none_or(|list| !list.is_empty()) && !calls.is_null()
        }) {
            return Err(invalid(
                "the last message holds tool calls, so its text cannot be continued",
            ));
        }
        let text = open_text(last)
            .ok_or_else(|| invalid("the last message has no text that could be continued"))?;
        let tag = Tag {
            text: format!("{} ", String::from(letter).repeat(LETTERS)),
        };
        text.push_str(&tag.text);
        Ok(tag)
    }

    /// `change` for all of a string but the tag.
    pub fn spared(&self, text: &str, change: impl Fn(&str) -> String) -> String {
        match text.strip_suffix(&self.text) {
            Some(before) => change(before) + &self.text,
            None => change(text),
        }
    }

    /// Cuts the rendered text, and what lies beyond from its places.
    pub fn cut(&self, text: &mut String, places: &mut Vec<usize>) -> Result<(), Failure> {
        let at = text.rfind(self.text.trim_end()).ok_or_else(|| {
            invalid(
                "the chat template does not write the last message's text as it is, so it cannot \
                 be continued",
            )
        })?;
        let trimmed = !text[at..].starts_with(&self.text);
        text.truncate(at);
        if trimmed {
            text.truncate(text.trim_end_matches(is_space).len());
        }
        places.retain(|&place| place < text.len());
        self.remove(text, places);
        Ok(())
    }

    /// Takes out what a template that writes the text more than once has left of the tag.
    fn remove(&self, text: &mut String, places: &mut [usize]) {
        let word = self.text.trim_end();
        let mut out = String::with_capacity(text.len());
        let (mut from, mut next) = (0, 0);
        while let Some(found) = text[from..].find(word) {
            let start = from + found;
            let shift = from - out.len();
            while next < places.len() && places[next] < start {
                places[next] -= shift;
                next += 1;
            }
            out.push_str(&text[from..start]);
            let whole = text[start..].starts_with(&self.text);
            from = start + if whole { self.text.len() } else { word.len() };
        }
        if from == 0 {
            return;
        }
        let shift = from - out.len();
        for place in &mut places[next..] {
            *place -= shift;
        }
        out.push_str(&text[from..]);
        *text = out;
    }
}
