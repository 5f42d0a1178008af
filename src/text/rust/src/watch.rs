// SPDX-License-Identifier: Apache-2.0
//! Ends steps of a grammar that take too long. llguidance bounds the items of a step but not the
//! work for them: an ambiguous grammar of 400 bytes can take seconds over one token. Its own means
//! against that is a flag, so a thread looks at those who are at work, every few milliseconds while
//! there are grammars, and sets the flag of one who has used up its processor time.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use llguidance::CancellationHandle;

use crate::Failure;

const LOOK: Duration = Duration::from_millis(20);

struct Task {
    id: u64,
    handle: CancellationHandle,
    clock: i32, // of the thread that is at work
    until_ns: i64,
}

struct Watch {
    running: bool,
    grammars: usize,
    next: u64,
    tasks: Vec<Task>,
}

static WATCH: Mutex<Watch> = Mutex::new(Watch {
    running: false,
    grammars: 0,
    next: 0,
    tasks: Vec::new(),
});
static MORE: Condvar = Condvar::new();

#[repr(C)]
struct Timespec {
    seconds: std::ffi::c_long,
    ns: std::ffi::c_long,
}

extern "C" {
    fn pthread_self() -> std::ffi::c_ulong;
    fn pthread_getcpuclockid(thread: std::ffi::c_ulong, clock: *mut i32) -> i32;
    fn clock_gettime(clock: i32, now: *mut Timespec) -> i32;
}

/// A processor's time, not the day's: what waits for a processor has not been at work.
fn now_ns(clock: i32) -> Option<i64> {
    let mut now = Timespec { seconds: 0, ns: 0 };
    // SAFETY: `now` is writable; a clock whose thread is gone is an error.
    let failed = unsafe { clock_gettime(clock, &mut now) } != 0;
    (!failed).then(|| now.seconds * 1_000_000_000 + now.ns)
}

fn clock_of_this_thread() -> i32 {
    let mut clock = 0;
    // SAFETY: the calling thread lives.
    match unsafe { pthread_getcpuclockid(pthread_self(), &mut clock) } {
        0 => clock,
        _ => 0, // CLOCK_REALTIME
    }
}

fn locked() -> MutexGuard<'static, Watch> {
    WATCH.lock().unwrap_or_else(PoisonError::into_inner)
}

fn look() {
    let mut watch = locked();
    loop {
        if watch.grammars == 0 && watch.tasks.is_empty() {
            watch = MORE.wait(watch).unwrap_or_else(PoisonError::into_inner);
            continue;
        }
        for task in &watch.tasks {
            if now_ns(task.clock).is_some_and(|now| now > task.until_ns) {
                task.handle.cancel();
            }
        }
        let waited = MORE.wait_timeout(watch, LOOK);
        watch = waited.unwrap_or_else(PoisonError::into_inner).0;
    }
}

/// While one lives, the thread looks.
pub struct Watched(());

impl Watched {
    pub fn new() -> Result<Watched, Failure> {
        let mut watch = locked();
        if !watch.running {
            std::thread::Builder::new()
                .name("grammar-watch".into())
                .spawn(look)
                .map_err(|_| Failure::NoMemory)?;
            watch.running = true;
        }
        watch.grammars += 1;
        if watch.grammars == 1 {
            MORE.notify_one();
        }
        Ok(Watched(()))
    }
}

/// Runs one step of a grammar on this thread; after `limit` of it the handle is cancelled.
pub fn run<T>(handle: &CancellationHandle, limit: Duration, work: impl FnOnce() -> T) -> T {
    let clock = clock_of_this_thread();
    let until_ns = now_ns(clock).unwrap_or(i64::MAX / 2) + limit.as_nanos() as i64;
    let mut watch = locked();
    let id = watch.next;
    watch.next += 1;
    watch.tasks.push(Task {
        id,
        handle: handle.clone(),
        clock,
        until_ns,
    });
    drop(watch);
    let _leave = Leave(id);
    work()
}

impl Drop for Watched {
    fn drop(&mut self) {
        locked().grammars -= 1;
    }
}

struct Leave(u64);

impl Drop for Leave {
    fn drop(&mut self) {
        locked().tasks.retain(|task| task.id != self.0);
    }
}
