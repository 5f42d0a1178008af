// SPDX-License-Identifier: Apache-2.0
//! Counts what the Rust side allocates, for each thread: how much a grammar holds is what its calls
//! left behind. llguidance has limits of its own, but none in bytes.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static NET: Cell<isize> = const { Cell::new(0) };
}

struct Counted;

#[global_allocator]
static ALLOCATOR: Counted = Counted;

fn count(bytes: isize) {
    let _ = NET.try_with(|net| net.set(net.get().wrapping_add(bytes)));
}

/// Bytes that this thread has allocated, less those that it has freed.
pub fn net() -> isize {
    NET.with(Cell::get)
}

// SAFETY: all is done by System; counting allocates nothing and does not unwind.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let at = System.alloc(layout);
        if !at.is_null() {
            count(layout.size() as isize);
        }
        at
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let at = System.alloc_zeroed(layout);
        if !at.is_null() {
            count(layout.size() as isize);
        }
        at
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        System.dealloc(at, layout);
        count(-(layout.size() as isize));
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let now = System.realloc(at, layout, size);
        if !now.is_null() {
            count(size as isize - layout.size() as isize);
        }
        now
    }
}
