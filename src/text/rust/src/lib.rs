// SPDX-License-Identifier: Apache-2.0
//! The C side of chat templates, and what they share with grammars (grammar.rs);
//! troika_text_rs.h is its contract.
//!
//! Every entry catches panics. Those that parse or render work on a thread of their own with a deep
//! stack, for they recurse, and an overflow is a crash that nothing catches. The others (masks,
//! accepted tokens, clones, questions, destroys) do not recurse and stay on the caller's thread.

mod disjoint;
mod finite;
mod grammar;
mod guard;
mod lark;
mod meet;
mod memory;
mod prefill;
mod properties;
mod python;
mod reference;
mod regex;
mod schema;
mod source;
mod template;
mod watch;

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Once;

use template::{End, Request, Template};

pub enum Failure {
    Invalid(String),
    Format(String),
    Unsupported(String),
    Limit(String),
    NoMemory,
    Internal(String),
}

// The numbers of troika/status.h.
const OK: i32 = 0;

impl Failure {
    fn code(&self) -> i32 {
        match self {
            Failure::Invalid(_) => 1,
            Failure::Format(_) => 2,
            Failure::Unsupported(_) => 3,
            Failure::NoMemory => 4,
            Failure::Limit(_) => 7,
            Failure::Internal(_) => 15,
        }
    }

    fn text(self) -> String {
        match self {
            Failure::Invalid(t)
            | Failure::Format(t)
            | Failure::Unsupported(t)
            | Failure::Limit(t)
            | Failure::Internal(t) => t,
            Failure::NoMemory => "no memory for a thread".into(),
        }
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Bytes {
    ptr: *const u8,
    len: usize,
}

#[repr(C)]
pub struct Text {
    ptr: *mut u8,
    len: usize,
    capacity: usize,
    literal: *mut usize,
    literal_n: usize,
    literal_capacity: usize,
}

#[repr(C)]
pub struct RenderRequest {
    messages: Bytes,
    tools: Bytes,
    controls: *const Bytes,
    controls_n: usize,
    output_max: usize,
    now_unix_s: i64,
    end: i32, // a C enum: any number may come
}

/// SAFETY: `bytes` points to len readable bytes, which outlive the call.
unsafe fn view<'a>(bytes: Bytes) -> Result<&'a str, Failure> {
    if bytes.len == 0 {
        return Ok("");
    }
    std::str::from_utf8(std::slice::from_raw_parts(bytes.ptr, bytes.len))
        .map_err(|e| Failure::Format(format!("not valid UTF-8 at byte {}", e.valid_up_to())))
}

/// SAFETY: `out` is writable and holds nothing that must be freed.
unsafe fn give(out: *mut Text, text: String, literal: Vec<usize>) {
    let mut text = std::mem::ManuallyDrop::new(text.into_bytes());
    let mut literal = std::mem::ManuallyDrop::new(literal);
    *out = Text {
        ptr: text.as_mut_ptr(),
        len: text.len(),
        capacity: text.capacity(),
        literal: literal.as_mut_ptr(),
        literal_n: literal.len(),
        literal_capacity: literal.capacity(),
    };
}

const STACK: usize = 64 << 20;

/// Runs on a thread with a deep stack, called `name`; a panic there is an internal error.
fn deep<T: Send>(
    name: &str,
    work: impl FnOnce() -> Result<T, Failure> + Send,
) -> Result<T, Failure> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new()
            .name(name.into())
            .stack_size(STACK)
            .spawn_scoped(scope, || catch_unwind(AssertUnwindSafe(work)))
            .map_err(|_| Failure::NoMemory)?;
        match thread.join() {
            Ok(Ok(result)) => result,
            _ => Err(Failure::Internal("the template engine failed".into())),
        }
    })
}

fn entry(error: *mut Text, work: impl FnOnce() -> Result<(), Failure>) -> i32 {
    static QUIET: Once = Once::new();
    QUIET.call_once(|| {
        grammar::hook_before_ours();
        std::panic::set_hook(Box::new(|_| {}));
    });
    let result = catch_unwind(AssertUnwindSafe(work))
        .unwrap_or_else(|_| Err(Failure::Internal("the template engine failed".into())));
    match result {
        Ok(()) => OK,
        Err(failure) => {
            let code = failure.code();
            unsafe { give(error, failure.text(), Vec::new()) };
            code
        }
    }
}

/// # Safety
/// As troika_text_rs.h says.
#[no_mangle]
pub unsafe extern "C" fn troika_rs_template_create(
    source: Bytes,
    bos: Bytes,
    eos: Bytes,
    out: *mut *mut Template,
    error: *mut Text,
) -> i32 {
    entry(error, || {
        let (source, bos, eos) = (view(source)?, view(bos)?, view(eos)?);
        let template = deep("template", || Template::new(source, bos, eos))?;
        *out = Box::into_raw(Box::new(template));
        Ok(())
    })
}

/// # Safety
/// As troika_text_rs.h says.
#[no_mangle]
pub unsafe extern "C" fn troika_rs_template_destroy(template: *mut Template) {
    if !template.is_null() {
        let _ = catch_unwind(AssertUnwindSafe(|| drop(Box::from_raw(template))));
    }
}

/// # Safety
/// As troika_text_rs.h says.
#[no_mangle]
pub unsafe extern "C" fn troika_rs_template_render(
    template: *const Template,
    request: *const RenderRequest,
    out: *mut Text,
    error: *mut Text,
) -> i32 {
    entry(error, || {
        let given = &*request;
        let mut controls = Vec::with_capacity(given.controls_n);
        for i in 0..given.controls_n {
            // A control token that is no UTF-8 cannot stand in a message.
            if let Ok(text) = view(*given.controls.add(i)) {
                controls.push(text);
            }
        }
        let wanted = Request {
            messages: view(given.messages)?,
            tools: view(given.tools)?,
            end: match given.end {
                0 => End::Generate,
                1 => End::Continue,
                _ => End::Closed,
            },
            now: given.now_unix_s,
            output_max: given.output_max,
        };
        let template = &*template;
        let (text, literal) = deep("render", || template.render(&wanted, &controls))?;
        give(out, text, literal);
        Ok(())
    })
}

/// # Safety
/// As troika_text_rs.h says.
#[no_mangle]
pub unsafe extern "C" fn troika_rs_text_free(text: *mut Text) {
    let t = &mut *text;
    if !t.ptr.is_null() {
        drop(Vec::from_raw_parts(t.ptr, t.len, t.capacity));
        drop(Vec::from_raw_parts(
            t.literal,
            t.literal_n,
            t.literal_capacity,
        ));
    }
    *t = Text {
        ptr: std::ptr::null_mut(),
        len: 0,
        capacity: 0,
        literal: std::ptr::null_mut(),
        literal_n: 0,
        literal_capacity: 0,
    };
}
