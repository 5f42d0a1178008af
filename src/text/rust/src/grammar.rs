// SPDX-License-Identifier: Apache-2.0
//! Constrained output by llguidance; troika_text_rs.h is the C side's contract.
//!
//! A grammar is compiled on a thread with a deep stack, since parsing recurses. Masks and accepted
//! tokens are computed on the caller's thread: there llguidance walks tables with bounded steps.

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Arc;
use std::time::Duration;

use llguidance::{
    api::{GrammarWithLexer, ParserLimits, TopLevelGrammar},
    toktrie::{
        InferenceCapabilities, SimpleVob, TokEnv, TokRxInfo, TokTrie, TokenId, TokenizerEnv,
    },
    Matcher, ParserFactory,
};
use serde_json::json;

use crate::{deep, entry, lark, memory, regex, schema, view, watch};
use crate::{Bytes, Failure, Text};

/// No more than 20 blanks in a row, and at most one newline, which comes first.
const BLANKS: &str = "\\n?\\x20{1,20}|\\n";
/// Without \u: then each text has one spelling, and no key can be written in a way that a schema
/// does not know.
const ESCAPES: &str = "nrbtf\\\"";

/// What one grammar may hold before its first token, parser and lexer together.
const HELD_MAX: isize = 10 << 20;
/// And in the course of an answer, which only those grow to that are being answered: a text of
/// 10,000 characters whose length is counted takes 14 to 30 MB, by the length of its tokens.
const GROWN_MAX: isize = 32 << 20;
/// Processor time of one mask or one token. Steps that the limits below allow take a few
/// milliseconds, but ambiguity multiplies them.
const STEP_MAX: Duration = Duration::from_millis(200);
const FIRST_STEP_MAX: Duration = Duration::from_millis(800);

fn limits() -> ParserLimits {
    ParserLimits {
        max_items_in_row: 4000,
        initial_lexer_fuel: 300_000,
        step_lexer_fuel: 100_000,
        step_max_items: 50_000,
        max_lexer_states: 100_000,
        max_grammar_size: 200_000,
        precompute_large_lexemes: true,
        verbose_errors: false,
    }
}

/// Texts within JSON strings are what most tokens are asked for: their answers are kept.
fn slices() -> Vec<String> {
    ["{1,10}", "{1,30}", "+"]
        .map(|n| format!("[^\"\\\\\\x00-\\x1F\\x7F]{n}"))
        .to_vec()
}

struct Tokens(TokTrie);

impl TokenizerEnv for Tokens {
    fn tok_trie(&self) -> &TokTrie {
        &self.0
    }
    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<TokenId> {
        self.0.greedy_tokenize(bytes)
    }
    /// So that llguidance never forces tokens, and any cut of a text into tokens may come.
    fn tokenize_is_canonical(&self) -> bool {
        false
    }
}

pub struct Vocab {
    factory: ParserFactory,
    text: Vec<u32>, // one bit a token: may be part of a text
    ends: Vec<TokenId>,
    n: u32,
}

#[repr(C)]
pub struct VocabSource {
    bytes: *const u8,
    offset: *const u32, // n + 1
    kind: *const u8,    // 0 never, 1 text, 2 ends an answer
    n: u32,
}

const TEXT: u8 = 1;
const END: u8 = 2;

impl Vocab {
    fn new(bytes: &[u8], offset: &[u32], kind: &[u8]) -> Result<Vocab, Failure> {
        let n = kind.len();
        let mut words = vec![Vec::new(); n];
        let mut text = vec![0u32; n.div_ceil(32)];
        let mut ends = Vec::new();
        for (i, word) in words.iter_mut().enumerate() {
            let piece = &bytes[offset[i] as usize..offset[i + 1] as usize];
            // llguidance's mark of special tokens is the byte 0xFF, which no UTF-8 text has.
            let plain = kind[i] == TEXT && !piece.is_empty() && piece[0] != 0xff;
            if plain && piece.len() <= 1000 {
                word.extend_from_slice(piece);
                text[i / 32] |= 1 << (i % 32);
            } else if kind[i] == END {
                word.extend_from_slice(format!("\u{0}<end {i}>").as_bytes());
                word[0] = TokTrie::SPECIAL_TOKEN_MARKER;
                ends.push(i as TokenId);
            }
        }
        let Some(first) = ends.first() else {
            return Err(Failure::Unsupported(
                "no token of the vocabulary ends an answer".into(),
            ));
        };
        let trie = TokTrie::from(&TokRxInfo::new(n as u32, *first), &words).with_eos_tokens(&ends);
        let env: TokEnv = Arc::new(Tokens(trie));
        let mut factory = ParserFactory::new(&env, InferenceCapabilities::default(), &slices())
            .map_err(internal)?;
        factory.quiet();
        *factory.limits_mut() = limits();
        let n = n as u32;
        Ok(Vocab {
            factory,
            text,
            ends,
            n,
        })
    }
}

/// What may follow in one state.
#[derive(Clone)]
struct Step {
    mask: Option<SimpleVob>, // None: no text
    complete: bool,
}

pub struct Grammar {
    vocab: Arc<Vocab>,
    matcher: Matcher,
    step: Option<Step>, // of this state, if it was computed
    ended: bool,
    failure: Option<(i32, String)>, // for good
    held: isize,                    // bytes, those that clones share too
    _watched: watch::Watched,
}

fn source_of(kind: u32, source: &str) -> Result<GrammarWithLexer, Failure> {
    let options = json!({ "whitespace_pattern": BLANKS, "json_allowed_escapes": ESCAPES });
    Ok(match kind {
        0 => GrammarWithLexer::from_json_schema(json!({
            "type": "object",
            "x-guidance": options,
        })),
        1 => GrammarWithLexer::from_json_schema(schema::rewrite(source, options)?),
        2 => {
            regex::check(source, false).map_err(|e| failure_of("regular expression", &e))?;
            if source.is_empty() {
                GrammarWithLexer::from_lark("start: \"\"".into())
            } else {
                GrammarWithLexer::from_regex(source)
            }
        }
        3 => {
            lark::check(source)?;
            GrammarWithLexer::from_lark(source.into())
        }
        _ => return Err(Failure::Invalid(format!("no grammar of kind {kind}"))),
    })
}

/// llguidance's errors are texts.
fn failure_of(what: &str, text: &str) -> Failure {
    let mut line = text.lines().next().unwrap_or("").trim().to_string();
    if let Some(more) = text.lines().find_map(|l| l.trim().strip_prefix("error: ")) {
        line = format!("{line} {more}"); // regex-syntax draws a picture first
    }
    if line.starts_with("NoExtension") {
        line = "no text fits it".into();
    }
    let has = |words: &[&str]| words.iter().any(|w| line.contains(w));
    let text = format!("{what}: {line:.300}");
    if line.starts_with("panic") {
        Failure::Internal(format!("{what}: the grammar engine failed"))
    } else if has(&[
        "too large",
        "too big",
        "too complex",
        "too many",
        "limit",
        "fuel",
        "exceed",
        "max is",
    ]) {
        Failure::Limit(text)
    } else if has(&[
        "supported",
        "Unimplemented",
        "Unable to determine",
        "can't determine",
    ]) {
        Failure::Unsupported(text)
    } else {
        Failure::Invalid(text)
    }
}

/// llguidance installs a panic hook at its first use, which would draw a backtrace: it must be
/// there before ours replaces it.
pub fn hook_before_ours() {
    let _ = llguidance::panic_utils::catch_unwind(|| Ok(()));
}

fn internal(e: impl std::fmt::Display) -> Failure {
    Failure::Internal(e.to_string())
}

impl Grammar {
    fn new(vocab: &Arc<Vocab>, kind: u32, source: &str) -> Result<Grammar, Failure> {
        let what = [
            "JSON object",
            "schema",
            "regular expression",
            "Lark grammar",
        ];
        let what = what.get(kind as usize).copied().unwrap_or("grammar");
        let before = memory::net();
        let top = TopLevelGrammar::from_grammar(source_of(kind, source)?);
        let mut matcher = Matcher::new(vocab.factory.create_parser(top)).into_cancellable();
        if let Some(text) = matcher.get_error() {
            return Err(failure_of(what, &text));
        }
        if kind <= 1 {
            if let Some(text) = matcher.grammar_warnings().first() {
                return Err(Failure::Unsupported(format!("{what}: {text:.300}")));
            }
        }
        let vocab = vocab.clone();
        let mut grammar = Grammar {
            vocab,
            matcher,
            step: None,
            ended: false,
            failure: None,
            held: 0,
            _watched: watch::Watched::new()?,
        };
        let first = grammar.run(FIRST_STEP_MAX, |g| g.step().map(|_| ()));
        grammar.held = memory::net() - before;
        first
            .and_then(|()| grammar.held_check(HELD_MAX))
            .map_err(|failure| failure_of(what, &failure.text()))?;
        Ok(grammar)
    }

    /// One that will answer each token as this one does: `held` is copied too, for it decides where
    /// an answer becomes too much.
    fn copy(&self) -> Result<Grammar, Failure> {
        Ok(Grammar {
            held: self.held,
            _watched: watch::Watched::new()?,
            vocab: self.vocab.clone(),
            matcher: self.matcher.deep_clone(),
            step: self.step.clone(),
            ended: self.ended,
            failure: self.failure.clone(),
        })
    }

    fn held_check(&self, most: isize) -> Result<(), Failure> {
        if self.held > most {
            let mb = most >> 20;
            return Err(Failure::Limit(format!("its size exceeds {mb} MB")));
        }
        Ok(())
    }

    /// A step, ended if it takes too long.
    fn run<T>(
        &mut self,
        limit: Duration,
        work: impl FnOnce(&mut Grammar) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let handle = self.matcher.cancellation_handle();
        let handle = handle.ok_or_else(|| internal("no handle"))?;
        let result = watch::run(&handle, limit, || work(self));
        if handle.is_cancelled() {
            return Err(Failure::Limit("a step exceeds its time".into()));
        }
        result
    }

    fn step(&mut self) -> Result<&Step, Failure> {
        if self.step.is_none() {
            self.step = Some(self.compute()?);
        }
        self.step
            .as_ref()
            .ok_or_else(|| Failure::Internal("no step".into()))
    }

    fn compute(&mut self) -> Result<Step, Failure> {
        if self.ended || (self.matcher.is_stopped() && !self.matcher.is_error()) {
            return Ok(Step {
                mask: None,
                complete: true,
            });
        }
        let mask = self.matcher.compute_mask().map_err(internal)?;
        let complete = self.matcher.is_accepting().map_err(internal)?;
        let texts = mask.as_slice().iter().zip(&self.vocab.text);
        let any = texts.into_iter().any(|(m, text)| m & text != 0);
        if !any && !complete {
            return Err(Failure::Internal(
                "no token of the vocabulary can come next".into(),
            ));
        }
        Ok(Step {
            mask: any.then_some(mask),
            complete,
        })
    }

    fn mask(&mut self, bits: &mut [u32]) -> Result<(), Failure> {
        let vocab = self.vocab.clone();
        let step = self.step()?;
        if let Some(mask) = &step.mask {
            for ((bits, mask), text) in bits.iter_mut().zip(mask.as_slice()).zip(&vocab.text) {
                *bits = mask & text;
            }
        }
        if step.complete {
            for end in &vocab.ends {
                bits[*end as usize / 32] |= 1 << (end % 32);
            }
        }
        Ok(())
    }

    /// False for a token that may not come.
    fn accept(&mut self, token: u32) -> Result<bool, Failure> {
        if self.ended || token >= self.vocab.n {
            return Ok(false);
        }
        if self.vocab.ends.contains(&token) {
            self.ended = self.step()?.complete;
            return Ok(self.ended);
        }
        if self.vocab.text[token as usize / 32] >> (token % 32) & 1 == 0 {
            return Ok(false);
        }
        let taken = self.matcher.try_consume_tokens(&[token]);
        let taken = taken.map_err(internal)? == 1;
        let allowed = self.step.as_ref().and_then(|s| s.mask.as_ref());
        if !taken && allowed.is_some_and(|mask| mask.is_allowed(token)) {
            // Happens with regexes such as `a+++++...b`, which it takes apart in two ways.
            let text = "the grammar engine refuses a token that it had allowed";
            return Err(Failure::Limit(text.into()));
        }
        if taken {
            self.step = None;
        }
        Ok(taken)
    }

    fn is_complete(&mut self) -> Result<bool, Failure> {
        match (&self.step, self.ended) {
            (_, true) => Ok(true),
            (Some(step), _) => Ok(step.complete),
            _ => self.matcher.is_accepting().map_err(internal),
        }
    }

    fn is_over(&self) -> bool {
        let nothing = self.step.as_ref().is_some_and(|s| s.mask.is_none());
        self.ended || nothing || (self.matcher.is_stopped() && !self.matcher.is_error())
    }

    /// Runs one call; a failure, also a panic, is this grammar's end.
    fn guarded<T>(
        &mut self,
        work: impl FnOnce(&mut Grammar) -> Result<T, Failure>,
    ) -> Result<T, i32> {
        if let Some((code, _)) = &self.failure {
            return Err(*code);
        }
        let before = memory::net();
        let result = catch_unwind(AssertUnwindSafe(|| self.run(STEP_MAX, work)))
            .unwrap_or_else(|_| Err(Failure::Internal("panic".into())));
        self.held += memory::net() - before;
        let result = result.and_then(|made| self.held_check(GROWN_MAX).map(|()| made));
        result.map_err(|failure| {
            // Nothing will be asked of it again, and what it holds may be much.
            self.matcher = Matcher::new(Err(std::io::Error::other("failed").into()));
            self.step = None;
            let failure = match failure {
                Failure::Limit(text) => Failure::Limit(format!("answer: {text}")),
                other => failure_of("answer", &other.text()),
            };
            let code = match failure {
                Failure::Limit(_) => failure.code(),
                _ => INTERNAL,
            };
            self.failure = Some((code, failure.text()));
            code
        })
    }
}

const OK: i32 = 0;
const INVALID: i32 = 1;
const INTERNAL: i32 = 15;

/// Compiles on a deep stack; a panic is an internal error.
fn compile<T: Send>(work: impl FnOnce() -> Result<T, Failure> + Send) -> Result<T, Failure> {
    deep("compile", || {
        catch_unwind(AssertUnwindSafe(work))
            .unwrap_or_else(|_| Err(Failure::Internal("the grammar engine failed".into())))
    })
}

/// # Safety
/// As troika_text_rs.h says.
#[no_mangle]
pub unsafe extern "C" fn troika_rs_vocab_create(
    source: *const VocabSource,
    out: *mut *const Vocab,
    error: *mut Text,
) -> i32 {
    entry(error, || {
        let s = &*source;
        let n = s.n as usize;
        let offset = std::slice::from_raw_parts(s.offset, n + 1);
        let bytes = std::slice::from_raw_parts(s.bytes, offset[n] as usize);
        let kind = std::slice::from_raw_parts(s.kind, n);
        let vocab = compile(|| Vocab::new(bytes, offset, kind))?;
        *out = Arc::into_raw(Arc::new(vocab));
        Ok(())
    })
}

/// # Safety
/// As troika_text_rs.h says.
#[no_mangle]
pub unsafe extern "C" fn troika_rs_vocab_destroy(vocab: *const Vocab) {
    if !vocab.is_null() {
        let _ = catch_unwind(AssertUnwindSafe(|| drop(Arc::from_raw(vocab))));
    }
}

/// # Safety
/// As troika_text_rs.h says.
#[no_mangle]
pub unsafe extern "C" fn troika_rs_grammar_create(
    vocab: *const Vocab,
    kind: u32,
    source: Bytes,
    out: *mut *mut Grammar,
    error: *mut Text,
) -> i32 {
    entry(error, || {
        Arc::increment_strong_count(vocab);
        let vocab = Arc::from_raw(vocab);
        let source = view(source)?;
        let grammar = compile(|| Grammar::new(&vocab, kind, source))?;
        *out = Box::into_raw(Box::new(grammar));
        Ok(())
    })
}

/// # Safety
/// As troika_text_rs.h says.
#[no_mangle]
pub unsafe extern "C" fn troika_rs_grammar_clone(
    grammar: *const Grammar,
    out: *mut *mut Grammar,
    error: *mut Text,
) -> i32 {
    entry(error, || {
        *out = Box::into_raw(Box::new((*grammar).copy()?));
        Ok(())
    })
}

/// # Safety
/// As troika_text_rs.h says.
#[no_mangle]
pub unsafe extern "C" fn troika_rs_grammar_destroy(grammar: *mut Grammar) {
    if !grammar.is_null() {
        let _ = catch_unwind(AssertUnwindSafe(|| drop(Box::from_raw(grammar))));
    }
}

/// # Safety
/// As troika_text_rs.h says.
#[no_mangle]
pub unsafe extern "C" fn troika_rs_grammar_mask(grammar: *mut Grammar, bits: *mut u32) -> i32 {
    let grammar = &mut *grammar;
    let bits = std::slice::from_raw_parts_mut(bits, grammar.vocab.text.len());
    bits.fill(0);
    match grammar.guarded(|g| g.mask(bits)) {
        Ok(()) => OK,
        Err(code) => {
            bits.fill(0); // it may have failed after it was filled in
            code
        }
    }
}

/// # Safety
/// As troika_text_rs.h says.
#[no_mangle]
pub unsafe extern "C" fn troika_rs_grammar_accept(grammar: *mut Grammar, token: u32) -> i32 {
    match (*grammar).guarded(|g| g.accept(token)) {
        Ok(true) => OK,
        Ok(false) => INVALID,
        Err(code) => code,
    }
}

/// # Safety
/// As troika_text_rs.h says.
#[no_mangle]
pub unsafe extern "C" fn troika_rs_grammar_is_complete(grammar: *mut Grammar) -> bool {
    (*grammar).guarded(|g| g.is_complete()).unwrap_or(false)
}

/// # Safety
/// As troika_text_rs.h says.
#[no_mangle]
pub unsafe extern "C" fn troika_rs_grammar_is_over(grammar: *mut Grammar) -> bool {
    (*grammar).guarded(|g| Ok(g.is_over())).unwrap_or(false)
}

/// # Safety
/// As troika_text_rs.h says.
#[no_mangle]
pub unsafe extern "C" fn troika_rs_grammar_failure(grammar: *const Grammar) -> Bytes {
    let text = (*grammar).failure.as_ref().map_or("", |(_, text)| text);
    Bytes {
        ptr: text.as_ptr(),
        len: text.len(),
    }
}
