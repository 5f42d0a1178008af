// SPDX-License-Identifier: Apache-2.0
//! A chat template, compiled once, rendered many times.

use std::cell::Cell;
use std::io;

use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, Error, ErrorKind, State, Value};

use crate::guard::{self, Controls, Marks, LEVELS};
use crate::prefill::Tag;
use crate::python;
use crate::source;
use crate::Failure;

pub const SOURCE_MAX: usize = 64 << 10;
const FUEL: u64 = 500_000;
const NESTING_MAX: usize = 200;
const NAME: &str = "chat_template";

pub struct Template {
    environment: Environment<'static>,
    source: String,
    bos: String,
    eos: String,
}

/// What follows the messages.
#[derive(Clone, Copy, PartialEq)]
pub enum End {
    Generate,
    Continue,
    Closed,
}

pub struct Request<'a> {
    pub messages: &'a str,
    pub tools: &'a str,
    pub end: End,
    pub now: i64,
    pub output_max: usize,
}

thread_local! {
    /// Set by raise_exception: its text is for the client as it is, without the engine's place and
    /// kind.
    static RAISED: Cell<bool> = const { Cell::new(false) };
}

fn raise_exception(text: String) -> Result<Value, Error> {
    RAISED.set(true);
    Err(Error::new(ErrorKind::InvalidOperation, text))
}

fn strftime_now(state: &State, format: String) -> Result<String, Error> {
    let now = state
        .lookup("_troika_now")
        .and_then(|value| i64::try_from(value).ok())
        .unwrap_or(0);
    Ok(python::strftime(now, &format))
}

fn failure(error: &Error) -> Failure {
    let detail = error.detail().unwrap_or("").to_string();
    if RAISED.get() {
        return Failure::Invalid(detail);
    }
    let place = error
        .line()
        .map_or(String::new(), |line| format!(" (line {line})"));
    let text = match detail.as_str() {
        "" => format!("{}{place}", error.kind()),
        _ => format!("{}: {detail}{place}", error.kind()),
    };
    match error.kind() {
        ErrorKind::OutOfFuel => {
            Failure::Limit(format!("the chat template does too much work{place}"))
        }
        ErrorKind::WriteFailure => Failure::Limit("the chat template writes too much".into()),
        _ => Failure::Invalid(text),
    }
}

/// Takes what is written up to a maximum.
struct Bounded {
    out: Vec<u8>,
    max: usize,
}

impl io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() > self.max - self.out.len() {
            return Err(io::Error::other("output limit"));
        }
        self.out.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Template {
    pub fn new(source: &str, bos: &str, eos: &str) -> Result<Template, Failure> {
        if source.len() > SOURCE_MAX {
            return Err(Failure::Limit(format!(
                "chat template of {} bytes, at most {SOURCE_MAX}",
                source.len()
            )));
        }
        let mut environment = Environment::new();
        // As the reference library sets jinja2 up.
        let syntax = SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .build()
            .map_err(|e| Failure::Internal(e.to_string()))?;
        environment.set_syntax(syntax);
        environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        environment.set_fuel(Some(FUEL));
        environment.set_recursion_limit(NESTING_MAX);
        environment.set_formatter(|out, _, value| python::write_value(out, value));
        environment.set_unknown_method_callback(python::method);
        environment.add_filter("tojson", python::tojson);
        environment.add_filter("trim", python::trim);
        environment.add_filter(source::ITERATED, python::iterated);
        environment.add_test("iterable", python::is_iterable);
        environment.add_test("sequence", python::is_sequence);
        environment.add_function("raise_exception", raise_exception);
        environment.add_function("strftime_now", strftime_now);
        // jinja2 reads every line end as \n.
        let text = source::adapted(&source.replace("\r\n", "\n").replace('\r', "\n"));
        RAISED.set(false);
        environment
            .add_template_owned(NAME, text)
            .map_err(|e| match failure(&e) {
                Failure::Invalid(text) => Failure::Format(text),
                other => other,
            })?;
        Ok(Template {
            environment,
            source: source.into(),
            bos: bos.into(),
            eos: eos.into(),
        })
    }

    fn render_values(
        &self,
        messages: Value,
        tools: Value,
        request: &Request,
    ) -> Result<String, Failure> {
        let template = self
            .environment
            .get_template(NAME)
            .map_err(|e| failure(&e))?;
        let context = Value::from_pairs([
            ("messages", messages),
            ("tools", tools),
            ("documents", Value::from(())),
            (
                "add_generation_prompt",
                Value::from(request.end == End::Generate),
            ),
            ("bos_token", Value::from(self.bos.as_str())),
            ("eos_token", Value::from(self.eos.as_str())),
            ("_troika_now", Value::from(request.now)),
        ]);
        let mut out = Bounded {
            out: Vec::new(),
            max: request.output_max,
        };
        RAISED.set(false);
        template
            .render_captured_to(context, &mut out)
            .map_err(|e| failure(&e))?;
        String::from_utf8(out.out).map_err(|e| Failure::Internal(e.to_string()))
    }

    /// The text, and the byte places in it that no control token may cover.
    pub fn render(
        &self,
        request: &Request,
        controls: &[&str],
    ) -> Result<(String, Vec<usize>), Failure> {
        let mut messages = parse("messages", request.messages)?;
        if !messages.is_array() {
            return Err(Failure::Invalid("messages: not a list".into()));
        }
        let tools = if request.tools.is_empty() {
            serde_json::Value::Null
        } else {
            parse("tools", request.tools)?
        };
        let tag = match request.end {
            End::Continue => Some(Tag::put(&self.source, &mut messages, &tools)?),
            _ => None,
        };
        let (mut text, mut places) =
            self.render_guarded(&messages, &tools, request, controls, &tag)?;
        if let Some(tag) = tag {
            tag.cut(&mut text, &mut places)?;
        }
        Ok((text, places))
    }

    fn render_guarded(
        &self,
        messages: &serde_json::Value,
        tools: &serde_json::Value,
        request: &Request,
        controls: &[&str],
        tag: &Option<Tag>,
    ) -> Result<(String, Vec<usize>), Failure> {
        let same = |text: &str| text.to_string();
        let plain = self.render_values(
            guard::to_value(messages, &same),
            guard::to_value(tools, &same),
            request,
        )?;
        let controls = Controls::new(controls.to_vec());
        let json = [messages, tools];
        if !guard::needed(&controls, &json) {
            return Ok((plain, Vec::new()));
        }
        let marks = Marks::choose(&controls, &self.source, &json)
            .ok_or_else(|| Failure::Invalid("messages: no private character is left".into()))?;
        for level in LEVELS {
            let mark = |text: &str| marks.mark(&controls, level, text);
            let change = |text: &str| match tag {
                Some(tag) => tag.spared(text, mark),
                None => mark(text),
            };
            let marked = self.render_values(
                guard::to_value(messages, &change),
                guard::to_value(tools, &change),
                request,
            );
            // A bound that the first rendering kept may be passed by a longer one: then the next
            // level.
            let Ok(marked) = marked else { continue };
            let (text, places) = marks.unmark(&marked);
            if text == plain {
                return Ok((text, places));
            }
        }
        Err(Failure::Invalid(
            "messages: the chat template changes the control tokens that they hold, so \
             they cannot be told from its own"
                .into(),
        ))
    }
}

fn parse(what: &str, text: &str) -> Result<serde_json::Value, Failure> {
    serde_json::from_str(text).map_err(|e| Failure::Format(format!("{what}: {e}")))
}
