# SPDX-License-Identifier: Apache-2.0
"""The simulator's scheduler: runs the threads of a launch as coroutines, block after block.

Written in MLIR and compiled like a kernel, once for each program that needs it. It keeps a record for each thread of
the running block:

====== ==========================================================================
offset field (8 bytes each)
====== ==========================================================================
0      continuation: the function that resumes the thread; null when it ended
8      state: 0 ready, 1 at a barrier, 2 at a warp exchange, 3 ended
16     exchanges made so far; its parity picks the slots of the next one
24     thread number in the block
32     the warp's exchange slots: 2 × 32 slots of ``SLOT_BYTES``
40     the block's workgroup memory
48     the report (see below)
64     ``FRAME_BYTES`` of coroutine frame; more is allocated when they are too few
====== ==========================================================================

Threads of a warp run until each waits; a warp whose threads all wait for an exchange goes on, and a block whose threads
all wait at a barrier does. Any other standstill is an error: code 1 (a barrier that not all threads of the block reach)
or 2 (an exchange that not all lanes of the warp take part in). ``order`` permutes warps and lanes, so that code that
relies on an order that nothing guarantees is found out.
"""

from __future__ import annotations

RECORD_BYTES = 192
FRAME_OFFSET = 64
FRAME_BYTES = RECORD_BYTES - FRAME_OFFSET
SLOT_BYTES = 64
WARP_SLOT_BYTES = 2 * 32 * SLOT_BYTES

READY, AT_BARRIER, AT_EXCHANGE, ENDED = range(4)

#: int64 launch(thread, params, dims, shared_bytes, memory, order, report)
SCHEDULER = f"""
module {{
  llvm.func @malloc(i64) -> !llvm.ptr
  llvm.func @free(!llvm.ptr)
  llvm.mlir.global internal @frames() : !llvm.ptr {{
    %0 = llvm.mlir.zero : !llvm.ptr
    llvm.return %0 : !llvm.ptr
  }}

  // Frames that did not fit their record: a doubly linked list, so that those of abandoned threads can be freed.
  llvm.func @gristmill_sim_allocate(%bytes: i32) -> !llvm.ptr {{
    %header = llvm.mlir.constant(16 : i64) : i64
    %wide = llvm.zext %bytes : i32 to i64
    %total = llvm.add %wide, %header : i64
    %node = llvm.call @malloc(%total) : (i64) -> !llvm.ptr
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
    %frame = llvm.getelementptr %node[16] : (!llvm.ptr) -> !llvm.ptr, i8
    llvm.return %frame : !llvm.ptr
  }}

  llvm.func @gristmill_sim_free(%frame: !llvm.ptr) {{
    %null = llvm.mlir.zero : !llvm.ptr
    %node = llvm.getelementptr %frame[-16] : (!llvm.ptr) -> !llvm.ptr, i8
    %back = llvm.getelementptr %frame[-8] : (!llvm.ptr) -> !llvm.ptr, i8
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
    llvm.call @free(%node) : (!llvm.ptr) -> ()
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
      %frame = llvm.getelementptr %first[16] : (!llvm.ptr) -> !llvm.ptr, i8
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
    %state = llvm.getelementptr %record[8] : (!llvm.ptr) -> !llvm.ptr, i8
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
      %state = llvm.getelementptr %record[8] : (!llvm.ptr) -> !llvm.ptr, i8
      %value = llvm.load %state : !llvm.ptr -> i64
      %ready = arith.cmpi eq, %value, %zero : i64
      scf.if %ready {{
        %frame = llvm.getelementptr %record[{FRAME_OFFSET}] : (!llvm.ptr) -> !llvm.ptr, i8
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
    %failure = arith.constant 2 : i64
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
      %broken = arith.select %fine, %zero, %one : i64
      %first = arith.cmpi ne, %failed, %zero : i64
      %now = arith.select %first, %failed, %broken : i64
      %clean = arith.cmpi eq, %now, %zero : i64
      %next = arith.andi %together, %clean : i1
      scf.yield %next, %now : i1, i64
    }}
    return %result#1 : i64
  }}

  llvm.func @gristmill_sim_launch(%thread: !llvm.ptr, %params: !llvm.ptr, %dims: !llvm.ptr, %shared: !llvm.ptr,
                                  %memory: !llvm.ptr, %order: i64, %report: !llvm.ptr) -> i64 {{
    %code = func.call @grid(%thread, %params, %dims, %shared, %memory, %order, %report)
      : (!llvm.ptr, !llvm.ptr, !llvm.ptr, !llvm.ptr, !llvm.ptr, i64, !llvm.ptr) -> i64
    llvm.return %code : i64
  }}

  func.func private @extent(%dims: !llvm.ptr, %axis: i64) -> i64 {{
    %at = llvm.getelementptr %dims[%axis] : (!llvm.ptr, i64) -> !llvm.ptr, i32
    %narrow = llvm.load %at : !llvm.ptr -> i32
    %wide = arith.extui %narrow : i32 to i64
    return %wide : i64
  }}

  func.func private @grid(%thread: !llvm.ptr, %params: !llvm.ptr, %dims: !llvm.ptr, %shared: !llvm.ptr,
                          %memory: !llvm.ptr, %order: i64, %report: !llvm.ptr) -> i64 {{
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
    %go = arith.constant true
    %null = llvm.mlir.zero : !llvm.ptr
    %result:3 = scf.while (%more = %go, %b = %c0, %code = %c0) : (i1, i64, i64) -> (i1, i64, i64) {{
      scf.condition(%more) %more, %b, %code : i1, i64, i64
    }} do {{
    ^bb0(%more: i1, %b: i64, %code: i64):
      %x = arith.remui %b, %gx : i64
      %yz = arith.divui %b, %gx : i64
      %y = arith.remui %yz, %gy : i64
      %z = arith.divui %yz, %gy : i64
      scf.for %t = %c0 to %threads step %c1 : i64 {{
        %record = func.call @record(%memory, %t) : (!llvm.ptr, i64) -> !llvm.ptr
        %tx = arith.remui %t, %bx : i64
        %tyz = arith.divui %t, %bx : i64
        %ty = arith.remui %tyz, %by : i64
        %tz = arith.divui %tyz, %by : i64
        %warp = arith.divui %t, %lanes : i64
        %warp_offset = arith.muli %warp, %warp_bytes : i64
        %warp_slots = llvm.getelementptr %slots[%warp_offset] : (!llvm.ptr, i64) -> !llvm.ptr, i8
        %state = llvm.getelementptr %record[8] : (!llvm.ptr) -> !llvm.ptr, i8
        %exchanges = llvm.getelementptr %record[16] : (!llvm.ptr) -> !llvm.ptr, i8
        %number = llvm.getelementptr %record[24] : (!llvm.ptr) -> !llvm.ptr, i8
        %its_slots = llvm.getelementptr %record[32] : (!llvm.ptr) -> !llvm.ptr, i8
        %its_shared = llvm.getelementptr %record[40] : (!llvm.ptr) -> !llvm.ptr, i8
        %its_report = llvm.getelementptr %record[48] : (!llvm.ptr) -> !llvm.ptr, i8
        %frame = llvm.getelementptr %record[{FRAME_OFFSET}] : (!llvm.ptr) -> !llvm.ptr, i8
        llvm.store %c0, %state : i64, !llvm.ptr
        llvm.store %c0, %exchanges : i64, !llvm.ptr
        llvm.store %t, %number : i64, !llvm.ptr
        llvm.store %warp_slots, %its_slots : !llvm.ptr, !llvm.ptr
        llvm.store %shared, %its_shared : !llvm.ptr, !llvm.ptr
        llvm.store %report, %its_report : !llvm.ptr, !llvm.ptr
        %next = llvm.call %thread(%frame, %record, %params, %tx, %ty, %tz, %x, %y, %z)
          : !llvm.ptr, (!llvm.ptr, !llvm.ptr, !llvm.ptr, i64, i64, i64, i64, i64, i64) -> !llvm.ptr
        llvm.store %next, %record : !llvm.ptr, !llvm.ptr
      }}
      %found = func.call @block(%memory, %threads, %order) : (!llvm.ptr, i64, i64) -> i64
      %following = arith.addi %b, %c1 : i64
      %left = arith.cmpi ult, %following, %blocks : i64
      %clean = arith.cmpi eq, %found, %c0 : i64
      %proceed = arith.andi %left, %clean : i1
      scf.if %clean {{
      }} else {{
        %where = llvm.getelementptr %report[8] : (!llvm.ptr) -> !llvm.ptr, i8
        llvm.store %found, %report : i64, !llvm.ptr
        llvm.store %b, %where : i64, !llvm.ptr
        func.call @free_all() : () -> ()
      }}
      scf.yield %proceed, %following, %found : i1, i64, i64
    }}
    return %result#2 : i64
  }}
}}
"""
