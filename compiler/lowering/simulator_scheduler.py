# SPDX-License-Identifier: Apache-2.0
"""The simulator's scheduler: runs the threads of a launch as coroutines, block after block.

Written in MLIR and compiled like a kernel, once for each program that needs it. It keeps a record for each thread of
the running block, of fields of 8 bytes:

=========== =====================================================================
field       content
=========== =====================================================================
``RESUME``  the function that resumes the thread; null when it ended
``STATE``   0 ready, 1 at a barrier, 2 at an exchange, 3 ended
EXCHANGES   exchanges made so far; the parity picks the slots of the next one
BARRIERS    barriers passed so far
THREAD      thread number in the block
BLOCK       block number in the grid
SLOTS       the warp's exchange slots: 2 × 32 of ``SLOT_BYTES``
SHARED      the block's workgroup memory
SHADOW      16 bytes for each of its bytes, for :mod:`.simulator_checks`
REPORT      where to report faults (:mod:`gristmill.runtime.simulator_report`)
FRAME       ``FRAME_BYTES`` of coroutine frame; more is allocated when too few
=========== =====================================================================

Threads of a warp run until each waits; a warp whose threads all wait for an exchange goes on, and a block whose threads
all wait at a barrier does. Any other standstill is an error: code 1 (a barrier that not all threads of the block reach)
or 2 (an exchange that not all lanes of the warp take part in). ``order`` permutes warps and lanes, so that code that
relies on an order that nothing guarantees is found out.
"""

from __future__ import annotations

from gristmill.compiler.lowering.simulator_queue import QUEUE_FUNCTIONS
from gristmill.runtime.simulator_report import (
    DIVERGENT_BARRIER,
    DIVERGENT_EXCHANGE,
    OUT_OF_MEMORY,
    RACE,
    UNINITIALISED,
)

RESUME, STATE, EXCHANGES, BARRIERS, THREAD, BLOCK, SLOTS, SHARED, SHADOW, REPORT = range(0, 80, 8)
FRAME = 80
RECORD_BYTES = 256
FRAME_BYTES = RECORD_BYTES - FRAME

#: Bytes before a frame that does not fit its record, and its alignment: that of the widest vectors.
HEADER_BYTES = 64

SLOT_BYTES = 64
WARP_SLOT_BYTES = 2 * 32 * SLOT_BYTES

READY, AT_BARRIER, AT_EXCHANGE, ENDED = range(4)

#: Modes of a checked access of workgroup memory.
READ, WRITE, ATOMIC = range(3)

#: int64 launch(thread, params, dims, shared_bytes, order, report)
SCHEDULER = f"""
module {{
  llvm.func @malloc(i64) -> !llvm.ptr
  llvm.func @free(!llvm.ptr)
  llvm.mlir.global internal @frames() : !llvm.ptr {{
    %0 = llvm.mlir.zero : !llvm.ptr
    llvm.return %0 : !llvm.ptr
  }}

  // Frames that did not fit their record: a doubly linked list, so that those of abandoned threads can be freed.
  // Each lies {HEADER_BYTES} bytes, where the list and the address to free are, after a multiple of that: LLVM keeps
  // vectors in them as widely aligned as they are.
  llvm.func @gristmill_sim_allocate(%bytes: i32) -> !llvm.ptr {{
    %extra = llvm.mlir.constant({2 * HEADER_BYTES} : i64) : i64
    %before = llvm.mlir.constant({HEADER_BYTES - 1} : i64) : i64
    %mask = llvm.mlir.constant({-HEADER_BYTES} : i64) : i64
    %wide = llvm.zext %bytes : i32 to i64
    %total = llvm.add %wide, %extra : i64
    %raw = llvm.call @malloc(%total) : (i64) -> !llvm.ptr
    %address = llvm.ptrtoint %raw : !llvm.ptr to i64
    %end = llvm.add %address, %before : i64
    %start = llvm.and %end, %mask : i64
    %node = llvm.inttoptr %start : i64 to !llvm.ptr
    %memory = llvm.getelementptr %node[16] : (!llvm.ptr) -> !llvm.ptr, i8
    llvm.store %raw, %memory : !llvm.ptr, !llvm.ptr
    %head = llvm.mlir.addressof @frames : !llvm.ptr
    %null = llvm.mlir.zero : !llvm.ptr
    %next = llvm.load %head : !llvm.ptr -> !llvm.ptr
    llvm.store %next, %node : !llvm.ptr, !llvm.ptr
    %previous = llvm.getelementptr %node[8] : (!llvm.ptr) -> !llvm.ptr, i8
    llvm.store %null, %previous : !llvm.ptr, !llvm.ptr
    %some = llvm.icmp "ne" %next, %null : !llvm.ptr
    llvm.cond_br %some, ^link, ^done
  ^link:
    %back = llvm.getelementptr %next[8] : (!llvm.ptr) -> !llvm.ptr, i8
    llvm.store %node, %back : !llvm.ptr, !llvm.ptr
    llvm.br ^done
  ^done:
    llvm.store %node, %head : !llvm.ptr, !llvm.ptr
    %frame = llvm.getelementptr %node[{HEADER_BYTES}] : (!llvm.ptr) -> !llvm.ptr, i8
    llvm.return %frame : !llvm.ptr
  }}

  llvm.func @gristmill_sim_free(%frame: !llvm.ptr) {{
    %null = llvm.mlir.zero : !llvm.ptr
    %node = llvm.getelementptr %frame[{-HEADER_BYTES}] : (!llvm.ptr) -> !llvm.ptr, i8
    %back = llvm.getelementptr %frame[{8 - HEADER_BYTES}] : (!llvm.ptr) -> !llvm.ptr, i8
    %next = llvm.load %node : !llvm.ptr -> !llvm.ptr
    %previous = llvm.load %back : !llvm.ptr -> !llvm.ptr
    %head = llvm.mlir.addressof @frames : !llvm.ptr
    %first = llvm.icmp "eq" %previous, %null : !llvm.ptr
    %before = llvm.select %first, %head, %previous : i1, !llvm.ptr
    llvm.store %next, %before : !llvm.ptr, !llvm.ptr
    %some = llvm.icmp "ne" %next, %null : !llvm.ptr
    llvm.cond_br %some, ^link, ^done
  ^link:
    %link = llvm.getelementptr %next[8] : (!llvm.ptr) -> !llvm.ptr, i8
    llvm.store %previous, %link : !llvm.ptr, !llvm.ptr
    llvm.br ^done
  ^done:
    %memory = llvm.getelementptr %node[16] : (!llvm.ptr) -> !llvm.ptr, i8
    %raw = llvm.load %memory : !llvm.ptr -> !llvm.ptr
    llvm.call @free(%raw) : (!llvm.ptr) -> ()
    llvm.return
  }}

  func.func private @free_all() {{
    %head = llvm.mlir.addressof @frames : !llvm.ptr
    %null = llvm.mlir.zero : !llvm.ptr
    scf.while : () -> () {{
      %first = llvm.load %head : !llvm.ptr -> !llvm.ptr
      %some = llvm.icmp "ne" %first, %null : !llvm.ptr
      scf.condition(%some)
    }} do {{
      %first = llvm.load %head : !llvm.ptr -> !llvm.ptr
      %frame = llvm.getelementptr %first[{HEADER_BYTES}] : (!llvm.ptr) -> !llvm.ptr, i8
      llvm.call @gristmill_sim_free(%frame) : (!llvm.ptr) -> ()
      scf.yield
    }}
    return
  }}

  // Counts of the states of threads [begin, end).
  func.func private @count(%records: !llvm.ptr, %begin: i64, %end: i64, %wanted: i64) -> i64 {{
    %zero = arith.constant 0 : i64
    %one = arith.constant 1 : i64
    %total = scf.for %t = %begin to %end step %one iter_args(%sum = %zero) -> i64 : i64 {{
      %state = func.call @state(%records, %t) : (!llvm.ptr, i64) -> !llvm.ptr
      %value = llvm.load %state : !llvm.ptr -> i64
      %same = arith.cmpi eq, %value, %wanted : i64
      %add = arith.extui %same : i1 to i64
      %next = arith.addi %sum, %add : i64
      scf.yield %next : i64
    }}
    return %total : i64
  }}

  func.func private @record(%records: !llvm.ptr, %thread: i64) -> !llvm.ptr {{
    %bytes = arith.constant {RECORD_BYTES} : i64
    %offset = arith.muli %thread, %bytes : i64
    %record = llvm.getelementptr %records[%offset] : (!llvm.ptr, i64) -> !llvm.ptr, i8
    return %record : !llvm.ptr
  }}

  func.func private @state(%records: !llvm.ptr, %thread: i64) -> !llvm.ptr {{
    %record = func.call @record(%records, %thread) : (!llvm.ptr, i64) -> !llvm.ptr
    %state = llvm.getelementptr %record[{STATE}] : (!llvm.ptr) -> !llvm.ptr, i8
    return %state : !llvm.ptr
  }}

  // Set the state of threads [begin, end) that are in %from to ready.
  func.func private @release(%records: !llvm.ptr, %begin: i64, %end: i64, %from: i64) {{
    %zero = arith.constant 0 : i64
    %one = arith.constant 1 : i64
    scf.for %t = %begin to %end step %one : i64 {{
      %state = func.call @state(%records, %t) : (!llvm.ptr, i64) -> !llvm.ptr
      %value = llvm.load %state : !llvm.ptr -> i64
      %same = arith.cmpi eq, %value, %from : i64
      scf.if %same {{
        llvm.store %zero, %state : i64, !llvm.ptr
      }}
    }}
    return
  }}

  // Run every ready thread of [begin, end) until it waits or ends.
  func.func private @run(%records: !llvm.ptr, %begin: i64, %end: i64, %order: i64) {{
    %zero = arith.constant 0 : i64
    %one = arith.constant 1 : i64
    %stop = arith.constant false
    %count = arith.subi %end, %begin : i64
    scf.for %i = %zero to %count step %one : i64 {{
      %turned = arith.addi %i, %order : i64
      %rotated = arith.remui %turned, %count : i64
      %last = arith.subi %count, %one : i64
      %mirrored = arith.subi %last, %rotated : i64
      %low = arith.andi %order, %one : i64
      %odd = arith.cmpi eq, %low, %one : i64
      %lane = arith.select %odd, %mirrored, %rotated : i64
      %t = arith.addi %begin, %lane : i64
      %record = func.call @record(%records, %t) : (!llvm.ptr, i64) -> !llvm.ptr
      %state = llvm.getelementptr %record[{STATE}] : (!llvm.ptr) -> !llvm.ptr, i8
      %value = llvm.load %state : !llvm.ptr -> i64
      %ready = arith.cmpi eq, %value, %zero : i64
      scf.if %ready {{
        %frame = llvm.getelementptr %record[{FRAME}] : (!llvm.ptr) -> !llvm.ptr, i8
        %go = llvm.load %record : !llvm.ptr -> !llvm.ptr
        %next = llvm.call %go(%frame, %stop) : !llvm.ptr, (!llvm.ptr, i1) -> !llvm.ptr
        llvm.store %next, %record : !llvm.ptr, !llvm.ptr
      }}
    }}
    return
  }}

  // Run one warp until all its threads wait at a barrier or ended. Returns 0, or the code of an error.
  func.func private @warp(%records: !llvm.ptr, %begin: i64, %end: i64, %order: i64) -> i64 {{
    %zero = arith.constant 0 : i64
    %exchange = arith.constant {AT_EXCHANGE} : i64
    %failure = arith.constant {DIVERGENT_EXCHANGE} : i64
    %live = arith.subi %end, %begin : i64
    %again = arith.constant true
    %result:2 = scf.while (%more = %again, %code = %zero) : (i1, i64) -> (i1, i64) {{
      scf.condition(%more) %more, %code : i1, i64
    }} do {{
    ^bb0(%more: i1, %code: i64):
      func.call @run(%records, %begin, %end, %order) : (!llvm.ptr, i64, i64, i64) -> ()
      %waiting = func.call @count(%records, %begin, %end, %exchange) : (!llvm.ptr, i64, i64, i64) -> i64
      %some = arith.cmpi ne, %waiting, %zero : i64
      %all = arith.cmpi eq, %waiting, %live : i64
      %mixed = arith.cmpi ne, %some, %all : i1
      func.call @release(%records, %begin, %end, %exchange) : (!llvm.ptr, i64, i64, i64) -> ()
      %found = arith.select %mixed, %failure, %zero : i64
      scf.yield %all, %found : i1, i64
    }}
    return %result#1 : i64
  }}

  // Run one block to its end. Returns 0, or the code of an error.
  func.func private @block(%records: !llvm.ptr, %threads: i64, %order: i64) -> i64 {{
    %zero = arith.constant 0 : i64
    %one = arith.constant 1 : i64
    %lanes = arith.constant 32 : i64
    %barrier = arith.constant {AT_BARRIER} : i64
    %ended = arith.constant {ENDED} : i64
    %round = arith.constant 31 : i64
    %rounded = arith.addi %threads, %round : i64
    %warps = arith.divui %rounded, %lanes : i64
    %go = arith.constant true
    %result:2 = scf.while (%more = %go, %code = %zero) : (i1, i64) -> (i1, i64) {{
      scf.condition(%more) %more, %code : i1, i64
    }} do {{
    ^bb0(%more: i1, %code: i64):
      %failed = scf.for %i = %zero to %warps step %one iter_args(%sofar = %zero) -> i64 : i64 {{
        %turned = arith.addi %i, %order : i64
        %w = arith.remui %turned, %warps : i64
        %begin = arith.muli %w, %lanes : i64
        %full = arith.addi %begin, %lanes : i64
        %end = arith.minui %full, %threads : i64
        %found = func.call @warp(%records, %begin, %end, %order) : (!llvm.ptr, i64, i64, i64) -> i64
        %worst = arith.maxui %sofar, %found : i64
        scf.yield %worst : i64
      }}
      %done = func.call @count(%records, %zero, %threads, %ended) : (!llvm.ptr, i64, i64, i64) -> i64
      %waiting = func.call @count(%records, %zero, %threads, %barrier) : (!llvm.ptr, i64, i64, i64) -> i64
      func.call @release(%records, %zero, %threads, %barrier) : (!llvm.ptr, i64, i64, i64) -> ()
      %finished = arith.cmpi eq, %done, %threads : i64
      %together = arith.cmpi eq, %waiting, %threads : i64
      %fine = arith.ori %finished, %together : i1
      %divergent = arith.constant {DIVERGENT_BARRIER} : i64
      %broken = arith.select %fine, %zero, %divergent : i64
      %first = arith.cmpi ne, %failed, %zero : i64
      %now = arith.select %first, %failed, %broken : i64
      %clean = arith.cmpi eq, %now, %zero : i64
      %next = arith.andi %together, %clean : i1
      scf.yield %next, %now : i1, i64
    }}
    return %result#1 : i64
  }}

  llvm.func @gristmill_sim_launch(%thread: !llvm.ptr, %params: !llvm.ptr, %dims: !llvm.ptr, %shared_bytes: i64,
                                  %order: i64, %report: !llvm.ptr) -> i64 {{
    %c3 = llvm.mlir.constant(3 : i64) : i64
    %c4 = llvm.mlir.constant(4 : i64) : i64
    %c5 = llvm.mlir.constant(5 : i64) : i64
    %bx = func.call @extent(%dims, %c3) : (!llvm.ptr, i64) -> i64
    %by = func.call @extent(%dims, %c4) : (!llvm.ptr, i64) -> i64
    %bz = func.call @extent(%dims, %c5) : (!llvm.ptr, i64) -> i64
    %bxy = llvm.mul %bx, %by : i64
    %threads = llvm.mul %bxy, %bz : i64
    // Workgroup memory and its shadow, a record a thread, slots for whole warps, and 64 bytes to align them.
    %thread_bytes = llvm.mlir.constant({RECORD_BYTES + WARP_SLOT_BYTES // 32} : i64) : i64
    %constant_bytes = llvm.mlir.constant({WARP_SLOT_BYTES + 64} : i64) : i64
    %with_shadow = llvm.mlir.constant(17 : i64) : i64
    %private = llvm.mul %threads, %thread_bytes : i64
    %both = llvm.mul %shared_bytes, %with_shadow : i64
    %common = llvm.add %both, %constant_bytes : i64
    %bytes = llvm.add %private, %common : i64
    %raw = llvm.call @malloc(%bytes) : (i64) -> !llvm.ptr
    %null = llvm.mlir.zero : !llvm.ptr
    %none = llvm.icmp "eq" %raw, %null : !llvm.ptr
    llvm.cond_br %none, ^exhausted, ^run
  ^exhausted:
    %exhausted = llvm.mlir.constant({OUT_OF_MEMORY} : i64) : i64
    llvm.return %exhausted : i64
  ^run:
    %address = llvm.ptrtoint %raw : !llvm.ptr to i64
    %round = llvm.mlir.constant(63 : i64) : i64
    %mask = llvm.mlir.constant(-64 : i64) : i64
    %up = llvm.add %address, %round : i64
    %aligned = llvm.and %up, %mask : i64
    %shared = llvm.inttoptr %aligned : i64 to !llvm.ptr
    %memory = llvm.getelementptr %shared[%both] : (!llvm.ptr, i64) -> !llvm.ptr, i8
    %code = func.call @grid(%thread, %params, %dims, %shared, %shared_bytes, %memory, %order, %report)
      : (!llvm.ptr, !llvm.ptr, !llvm.ptr, !llvm.ptr, i64, !llvm.ptr, i64, !llvm.ptr) -> i64
    llvm.call @free(%raw) : (!llvm.ptr) -> ()
    llvm.return %code : i64
  }}

  func.func private @extent(%dims: !llvm.ptr, %axis: i64) -> i64 {{
    %at = llvm.getelementptr %dims[%axis] : (!llvm.ptr, i64) -> !llvm.ptr, i32
    %narrow = llvm.load %at : !llvm.ptr -> i32
    %wide = arith.extui %narrow : i32 to i64
    return %wide : i64
  }}

  func.func private @grid(%thread: !llvm.ptr, %params: !llvm.ptr, %dims: !llvm.ptr, %shared: !llvm.ptr,
                          %shared_bytes: i64, %memory: !llvm.ptr, %order: i64, %report: !llvm.ptr) -> i64 {{
    %c0 = arith.constant 0 : i64
    %c1 = arith.constant 1 : i64
    %c2 = arith.constant 2 : i64
    %c3 = arith.constant 3 : i64
    %c4 = arith.constant 4 : i64
    %c5 = arith.constant 5 : i64
    %gx = func.call @extent(%dims, %c0) : (!llvm.ptr, i64) -> i64
    %gy = func.call @extent(%dims, %c1) : (!llvm.ptr, i64) -> i64
    %gz = func.call @extent(%dims, %c2) : (!llvm.ptr, i64) -> i64
    %bx = func.call @extent(%dims, %c3) : (!llvm.ptr, i64) -> i64
    %by = func.call @extent(%dims, %c4) : (!llvm.ptr, i64) -> i64
    %bz = func.call @extent(%dims, %c5) : (!llvm.ptr, i64) -> i64
    %bxy = arith.muli %bx, %by : i64
    %threads = arith.muli %bxy, %bz : i64
    %gxy = arith.muli %gx, %gy : i64
    %blocks = arith.muli %gxy, %gz : i64
    %record_bytes = arith.constant {RECORD_BYTES} : i64
    %slot_base = arith.muli %threads, %record_bytes : i64
    %slots = llvm.getelementptr %memory[%slot_base] : (!llvm.ptr, i64) -> !llvm.ptr, i8
    %warp_bytes = arith.constant {WARP_SLOT_BYTES} : i64
    %lanes = arith.constant 32 : i64
    %shadow = llvm.getelementptr %shared[%shared_bytes] : (!llvm.ptr, i64) -> !llvm.ptr, i8
    %shadow_scale = arith.constant 16 : i64
    %shadow_bytes = arith.muli %shared_bytes, %shadow_scale : i64
    %zero_byte = arith.constant 0 : i8
    %poison = arith.constant -1 : i8
    %go = arith.constant true
    %result:3 = scf.while (%more = %go, %b = %c0, %code = %c0) : (i1, i64, i64) -> (i1, i64, i64) {{
      scf.condition(%more) %more, %b, %code : i1, i64, i64
    }} do {{
    ^bb0(%more: i1, %b: i64, %code: i64):
      %x = arith.remui %b, %gx : i64
      %yz = arith.divui %b, %gx : i64
      %y = arith.remui %yz, %gy : i64
      %z = arith.divui %yz, %gy : i64
      "llvm.intr.memset"(%shared, %poison, %shared_bytes) <{{isVolatile = false}}> : (!llvm.ptr, i8, i64) -> ()
      "llvm.intr.memset"(%shadow, %zero_byte, %shadow_bytes) <{{isVolatile = false}}> : (!llvm.ptr, i8, i64) -> ()
      scf.for %t = %c0 to %threads step %c1 : i64 {{
        %record = func.call @record(%memory, %t) : (!llvm.ptr, i64) -> !llvm.ptr
        %tx = arith.remui %t, %bx : i64
        %tyz = arith.divui %t, %bx : i64
        %ty = arith.remui %tyz, %by : i64
        %tz = arith.divui %tyz, %by : i64
        %warp = arith.divui %t, %lanes : i64
        %warp_offset = arith.muli %warp, %warp_bytes : i64
        %warp_slots = llvm.getelementptr %slots[%warp_offset] : (!llvm.ptr, i64) -> !llvm.ptr, i8
        %state = llvm.getelementptr %record[{STATE}] : (!llvm.ptr) -> !llvm.ptr, i8
        %exchanges = llvm.getelementptr %record[{EXCHANGES}] : (!llvm.ptr) -> !llvm.ptr, i8
        %number = llvm.getelementptr %record[{THREAD}] : (!llvm.ptr) -> !llvm.ptr, i8
        %its_slots = llvm.getelementptr %record[{SLOTS}] : (!llvm.ptr) -> !llvm.ptr, i8
        %its_shared = llvm.getelementptr %record[{SHARED}] : (!llvm.ptr) -> !llvm.ptr, i8
        %its_report = llvm.getelementptr %record[{REPORT}] : (!llvm.ptr) -> !llvm.ptr, i8
        %frame = llvm.getelementptr %record[{FRAME}] : (!llvm.ptr) -> !llvm.ptr, i8
        llvm.store %c0, %state : i64, !llvm.ptr
        %barriers = llvm.getelementptr %record[{BARRIERS}] : (!llvm.ptr) -> !llvm.ptr, i8
        %its_block = llvm.getelementptr %record[{BLOCK}] : (!llvm.ptr) -> !llvm.ptr, i8
        %its_shadow = llvm.getelementptr %record[{SHADOW}] : (!llvm.ptr) -> !llvm.ptr, i8
        llvm.store %c0, %exchanges : i64, !llvm.ptr
        llvm.store %c0, %barriers : i64, !llvm.ptr
        llvm.store %b, %its_block : i64, !llvm.ptr
        llvm.store %shadow, %its_shadow : !llvm.ptr, !llvm.ptr
        llvm.store %t, %number : i64, !llvm.ptr
        llvm.store %warp_slots, %its_slots : !llvm.ptr, !llvm.ptr
        llvm.store %shared, %its_shared : !llvm.ptr, !llvm.ptr
        llvm.store %report, %its_report : !llvm.ptr, !llvm.ptr
        %next = llvm.call %thread(%frame, %record, %params, %tx, %ty, %tz, %x, %y, %z)
          : !llvm.ptr, (!llvm.ptr, !llvm.ptr, !llvm.ptr, i64, i64, i64, i64, i64, i64) -> !llvm.ptr
        llvm.store %next, %record : !llvm.ptr, !llvm.ptr
      }}
      %stuck = func.call @block(%memory, %threads, %order) : (!llvm.ptr, i64, i64) -> i64
      // A fault of a thread explains a standstill better than the standstill itself.
      %reported = llvm.load %report : !llvm.ptr -> i64
      %any = arith.cmpi ne, %reported, %c0 : i64
      %found = arith.select %any, %reported, %stuck : i64
      %following = arith.addi %b, %c1 : i64
      %left = arith.cmpi ult, %following, %blocks : i64
      %clean = arith.cmpi eq, %found, %c0 : i64
      %proceed = arith.andi %left, %clean : i1
      %is_stuck = arith.cmpi ne, %stuck, %c0 : i64
      scf.if %is_stuck {{
        func.call @free_all() : () -> ()
      }}
      %mute = arith.cmpi eq, %reported, %c0 : i64
      %divergent = arith.andi %mute, %is_stuck : i1
      scf.if %divergent {{
        %where = llvm.getelementptr %report[8] : (!llvm.ptr) -> !llvm.ptr, i8
        llvm.store %found, %report : i64, !llvm.ptr
        llvm.store %b, %where : i64, !llvm.ptr
      }}
      scf.yield %proceed, %following, %found : i1, i64, i64
    }}
    return %result#2 : i64
  }}

  func.func @gristmill_sim_fault(%record: !llvm.ptr, %code: i64, %text: !llvm.ptr, %value: i64, %other: i64) {{
    %its_report = llvm.getelementptr %record[{REPORT}] : (!llvm.ptr) -> !llvm.ptr, i8
    %report = llvm.load %its_report : !llvm.ptr -> !llvm.ptr
    %before = llvm.load %report : !llvm.ptr -> i64
    %zero = arith.constant 0 : i64
    %first = arith.cmpi eq, %before, %zero : i64
    scf.if %first {{
      %its_block = llvm.getelementptr %record[{BLOCK}] : (!llvm.ptr) -> !llvm.ptr, i8
      %its_thread = llvm.getelementptr %record[{THREAD}] : (!llvm.ptr) -> !llvm.ptr, i8
      %block = llvm.load %its_block : !llvm.ptr -> i64
      %thread = llvm.load %its_thread : !llvm.ptr -> i64
      %1 = llvm.getelementptr %report[8] : (!llvm.ptr) -> !llvm.ptr, i8
      %2 = llvm.getelementptr %report[16] : (!llvm.ptr) -> !llvm.ptr, i8
      %3 = llvm.getelementptr %report[24] : (!llvm.ptr) -> !llvm.ptr, i8
      %4 = llvm.getelementptr %report[32] : (!llvm.ptr) -> !llvm.ptr, i8
      %5 = llvm.getelementptr %report[40] : (!llvm.ptr) -> !llvm.ptr, i8
      llvm.store %code, %report : i64, !llvm.ptr
      llvm.store %block, %1 : i64, !llvm.ptr
      llvm.store %thread, %2 : i64, !llvm.ptr
      llvm.store %text, %3 : !llvm.ptr, !llvm.ptr
      llvm.store %value, %4 : i64, !llvm.ptr
      llvm.store %other, %5 : i64, !llvm.ptr
    }}
    return
  }}

  // The warp that a stamp's thread field is about; -1 for several.
  func.func private @warp_of(%thread: i64) -> i64 {{
    %five = arith.constant 5 : i64
    %several = arith.constant 1024 : i64
    %last = arith.constant 1056 : i64
    %none = arith.constant -1 : i64
    %own = arith.shrui %thread, %five : i64
    %named = arith.subi %thread, %several : i64
    %single = arith.cmpi ult, %thread, %several : i64
    %known = arith.cmpi ult, %thread, %last : i64
    %group = arith.select %known, %named, %none : i64
    %warp = arith.select %single, %own, %group : i64
    return %warp : i64
  }}

  // Whether nothing orders the access that made %stamp before the one of %mine.
  func.func private @unordered(%stamp: i64, %mine: i64) -> i1 {{
    %zero = arith.constant 0 : i64
    %c24 = arith.constant 24 : i64
    %c48 = arith.constant 48 : i64
    %low = arith.constant {0xFFFFFF} : i64
    %twelve = arith.constant {0xFFF} : i64
    %exists = arith.cmpi slt, %stamp, %zero : i64
    %barriers_high = arith.shrui %stamp, %c24 : i64
    %barriers = arith.andi %barriers_high, %low : i64
    %my_barriers_high = arith.shrui %mine, %c24 : i64
    %my_barriers = arith.andi %my_barriers_high, %low : i64
    %together = arith.cmpi eq, %barriers, %my_barriers : i64
    %thread_high = arith.shrui %stamp, %c48 : i64
    %thread = arith.andi %thread_high, %twelve : i64
    %my_thread_high = arith.shrui %mine, %c48 : i64
    %my_thread = arith.andi %my_thread_high, %twelve : i64
    %different = arith.cmpi ne, %thread, %my_thread : i64
    %warp = func.call @warp_of(%thread) : (i64) -> i64
    %my_warp = func.call @warp_of(%my_thread) : (i64) -> i64
    %same_warp = arith.cmpi eq, %warp, %my_warp : i64
    %exchanges = arith.andi %stamp, %low : i64
    %my_exchanges = arith.andi %mine, %low : i64
    %earlier = arith.cmpi ult, %exchanges, %my_exchanges : i64
    %exchanged = arith.andi %same_warp, %earlier : i1
    %true = arith.constant true
    %apart = arith.xori %exchanged, %true : i1
    %a = arith.andi %exists, %together : i1
    %b = arith.andi %different, %apart : i1
    %c = arith.andi %a, %b : i1
    return %c : i1
  }}

  // The stamp of a byte's reads when %mine joins %stamp.
  func.func private @join(%stamp: i64, %mine: i64) -> i64 {{
    %c48 = arith.constant 48 : i64
    %twelve = arith.constant {0xFFF} : i64
    %several = arith.constant 1024 : i64
    %all = arith.constant 1056 : i64
    %rest = arith.constant {~(((1 << 12) - 1) << 48)} : i64
    %apart = func.call @unordered(%stamp, %mine) : (i64, i64) -> i1
    %thread_high = arith.shrui %stamp, %c48 : i64
    %thread = arith.andi %thread_high, %twelve : i64
    %my_thread_high = arith.shrui %mine, %c48 : i64
    %my_thread = arith.andi %my_thread_high, %twelve : i64
    %warp = func.call @warp_of(%thread) : (i64) -> i64
    %my_warp = func.call @warp_of(%my_thread) : (i64) -> i64
    %same = arith.cmpi eq, %warp, %my_warp : i64
    %group = arith.addi %my_warp, %several : i64
    %who = arith.select %same, %group, %all : i64
    %high = arith.shli %who, %c48 : i64
    %base = arith.andi %mine, %rest : i64
    %joined = arith.ori %base, %high : i64
    %stamped = arith.select %apart, %joined, %mine : i64
    return %stamped : i64
  }}

  func.func @gristmill_sim_access(%record: !llvm.ptr, %address: i64, %bytes: i64, %mode: i64, %text: !llvm.ptr) {{
    %zero = arith.constant 0 : i64
    %one = arith.constant 1 : i64
    %read = arith.constant {READ} : i64
    %atomic = arith.constant {ATOMIC} : i64
    %c16 = arith.constant 16 : i64
    %c24 = arith.constant 24 : i64
    %c48 = arith.constant 48 : i64
    %c62 = arith.constant 62 : i64
    %low = arith.constant {0xFFFFFF} : i64
    %twelve = arith.constant {0xFFF} : i64
    %exists = arith.constant {-(1 << 63)} : i64
    %its_shared = llvm.getelementptr %record[{SHARED}] : (!llvm.ptr) -> !llvm.ptr, i8
    %its_shadow = llvm.getelementptr %record[{SHADOW}] : (!llvm.ptr) -> !llvm.ptr, i8
    %its_thread = llvm.getelementptr %record[{THREAD}] : (!llvm.ptr) -> !llvm.ptr, i8
    %its_barriers = llvm.getelementptr %record[{BARRIERS}] : (!llvm.ptr) -> !llvm.ptr, i8
    %its_exchanges = llvm.getelementptr %record[{EXCHANGES}] : (!llvm.ptr) -> !llvm.ptr, i8
    %shared = llvm.load %its_shared : !llvm.ptr -> i64
    %shadow = llvm.load %its_shadow : !llvm.ptr -> !llvm.ptr
    %thread = llvm.load %its_thread : !llvm.ptr -> i64
    %barriers_all = llvm.load %its_barriers : !llvm.ptr -> i64
    %exchanges_all = llvm.load %its_exchanges : !llvm.ptr -> i64
    %barriers_low = arith.andi %barriers_all, %low : i64
    %exchanges = arith.andi %exchanges_all, %low : i64
    %barriers = arith.shli %barriers_low, %c24 : i64
    %thread_bits = arith.shli %thread, %c48 : i64
    %is_read = arith.cmpi eq, %mode, %read : i64
    %is_atomic = arith.cmpi eq, %mode, %atomic : i64
    %atomic_wide = arith.extui %is_atomic : i1 to i64
    %atomic_bit = arith.shli %atomic_wide, %c62 : i64
    %m0 = arith.ori %exists, %thread_bits : i64
    %m1 = arith.ori %barriers, %exchanges : i64
    %m2 = arith.ori %m0, %m1 : i64
    %mine = arith.ori %m2, %atomic_bit : i64
    %start = arith.subi %address, %shared : i64
    %false = arith.constant false
    scf.for %i = %zero to %bytes step %one : i64 {{
      %offset = arith.addi %start, %i : i64
      %scaled = arith.muli %offset, %c16 : i64
      %write_at = llvm.getelementptr %shadow[%scaled] : (!llvm.ptr, i64) -> !llvm.ptr, i8
      %read_at = llvm.getelementptr %write_at[8] : (!llvm.ptr) -> !llvm.ptr, i8
      %written = llvm.load %write_at : !llvm.ptr -> i64
      %reads = llvm.load %read_at : !llvm.ptr -> i64
      %never = arith.cmpi sge, %written, %zero : i64
      %racy_write = func.call @unordered(%written, %mine) : (i64, i64) -> i1
      %racy_read = func.call @unordered(%reads, %mine) : (i64, i64) -> i1
      %atomic_high = arith.shrui %written, %c62 : i64
      %was_atomic_bit = arith.andi %atomic_high, %one : i64
      %was_atomic = arith.cmpi eq, %was_atomic_bit, %one : i64
      %both_atomic = arith.andi %was_atomic, %is_atomic : i1
      %write_race = arith.select %both_atomic, %false, %racy_write : i1
      %read_race = arith.select %is_read, %false, %racy_read : i1
      %plain_write = arith.constant {WRITE} : i64
      %is_write = arith.cmpi eq, %mode, %plain_write : i64
      %uninitialised = arith.select %is_write, %false, %never : i1
      scf.if %uninitialised {{
        %code = arith.constant {UNINITIALISED} : i64
        func.call @gristmill_sim_fault(%record, %code, %text, %offset, %zero)
          : (!llvm.ptr, i64, !llvm.ptr, i64, i64) -> ()
      }}
      %race = arith.ori %write_race, %read_race : i1
      scf.if %race {{
        %code = arith.constant {RACE} : i64
        %stamp = arith.select %write_race, %written, %reads : i64
        %other_high = arith.shrui %stamp, %c48 : i64
        %other = arith.andi %other_high, %twelve : i64
        func.call @gristmill_sim_fault(%record, %code, %text, %offset, %other)
          : (!llvm.ptr, i64, !llvm.ptr, i64, i64) -> ()
      }}
      scf.if %is_read {{
        %joined = func.call @join(%reads, %mine) : (i64, i64) -> i64
        llvm.store %joined, %read_at : i64, !llvm.ptr
      }} else {{
        llvm.store %mine, %write_at : i64, !llvm.ptr
        llvm.store %zero, %read_at : i64, !llvm.ptr
      }}
    }}
    return
  }}
{QUEUE_FUNCTIONS}}}
"""
