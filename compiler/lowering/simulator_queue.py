# SPDX-License-Identifier: Apache-2.0
"""The queue of a simulated thread's asynchronous copies: functions that are part of the scheduler's module.

Each thread has a queue in its frame, words of 8 bytes:

==================== ====================================================
0, 1                 copies started and finished so far
2, 3                 groups closed and finished so far
4 … 4 + GROUPS       copies started when a group was closed, by group
then, by copy        destination, source, bytes of each
==================== ====================================================
"""

from __future__ import annotations

from gristmill.runtime.simulator_report import TOO_MANY_COPIES

#: Copies and groups that a thread may have running.
COPIES, GROUPS = 128, 16

_HEADER, _ENTRY = 4 + GROUPS, 4

#: Words of a queue.
QUEUE_WORDS = _HEADER + COPIES * _ENTRY

#: Start a copy, close a group, wait for groups.
COPY, COMMIT, AWAIT = "gristmill_sim_copy", "gristmill_sim_commit", "gristmill_sim_await"

#: Part of the scheduler's module. Bytes are copied one by one and as volatile: LLVM would call ``memcpy``, which
#: kernels are not linked with.
QUEUE_FUNCTIONS = f"""
  func.func private @word(%queue: !llvm.ptr, %number: i64) -> !llvm.ptr {{
    %place = llvm.getelementptr %queue[%number] : (!llvm.ptr, i64) -> !llvm.ptr, i64
    return %place : !llvm.ptr
  }}

  // Add one to word %number; returns what it was.
  func.func private @count_word(%queue: !llvm.ptr, %number: i64) -> i64 {{
    %one = arith.constant 1 : i64
    %place = func.call @word(%queue, %number) : (!llvm.ptr, i64) -> !llvm.ptr
    %before = llvm.load %place : !llvm.ptr -> i64
    %after = arith.addi %before, %one : i64
    llvm.store %after, %place : i64, !llvm.ptr
    return %before : i64
  }}

  // Report when words %from and %to are %limit apart.
  func.func private @limit(%record: !llvm.ptr, %queue: !llvm.ptr, %from: i64, %to: i64, %limit: i64,
                           %text: !llvm.ptr) {{
    %first = func.call @word(%queue, %from) : (!llvm.ptr, i64) -> !llvm.ptr
    %last = func.call @word(%queue, %to) : (!llvm.ptr, i64) -> !llvm.ptr
    %done = llvm.load %first : !llvm.ptr -> i64
    %begun = llvm.load %last : !llvm.ptr -> i64
    %running = arith.subi %begun, %done : i64
    %full = arith.cmpi uge, %running, %limit : i64
    scf.if %full {{
      %code = arith.constant {TOO_MANY_COPIES} : i64
      func.call @gristmill_sim_fault(%record, %code, %text, %running, %limit)
        : (!llvm.ptr, i64, !llvm.ptr, i64, i64) -> ()
    }}
    return
  }}

  // The words of copy %number.
  func.func private @entry(%queue: !llvm.ptr, %number: i64) -> !llvm.ptr {{
    %copies = arith.constant {COPIES} : i64
    %words = arith.constant {_ENTRY} : i64
    %header = arith.constant {_HEADER} : i64
    %turn = arith.remui %number, %copies : i64
    %offset = arith.muli %turn, %words : i64
    %word = arith.addi %offset, %header : i64
    %place = func.call @word(%queue, %word) : (!llvm.ptr, i64) -> !llvm.ptr
    return %place : !llvm.ptr
  }}

  // Where the number of copies before the end of group %number is kept.
  func.func private @group(%queue: !llvm.ptr, %number: i64) -> !llvm.ptr {{
    %groups = arith.constant {GROUPS} : i64
    %header = arith.constant 4 : i64
    %turn = arith.remui %number, %groups : i64
    %word = arith.addi %turn, %header : i64
    %place = func.call @word(%queue, %word) : (!llvm.ptr, i64) -> !llvm.ptr
    return %place : !llvm.ptr
  }}

  func.func @{COPY}(%record: !llvm.ptr, %queue: !llvm.ptr, %to: i64, %from: i64, %bytes: i64, %valid: i64,
                     %text: !llvm.ptr) {{
    %zero = arith.constant 0 : i64
    %one = arith.constant 1 : i64
    %limit = arith.constant {COPIES} : i64
    func.call @limit(%record, %queue, %one, %zero, %limit, %text)
      : (!llvm.ptr, !llvm.ptr, i64, i64, i64, !llvm.ptr) -> ()
    %number = func.call @count_word(%queue, %zero) : (!llvm.ptr, i64) -> i64
    %0 = func.call @entry(%queue, %number) : (!llvm.ptr, i64) -> !llvm.ptr
    %1 = llvm.getelementptr %0[8] : (!llvm.ptr) -> !llvm.ptr, i8
    %2 = llvm.getelementptr %0[16] : (!llvm.ptr) -> !llvm.ptr, i8
    %3 = llvm.getelementptr %0[24] : (!llvm.ptr) -> !llvm.ptr, i8
    llvm.store %to, %0 : i64, !llvm.ptr
    llvm.store %from, %1 : i64, !llvm.ptr
    llvm.store %bytes, %2 : i64, !llvm.ptr
    llvm.store %valid, %3 : i64, !llvm.ptr
    return
  }}

  func.func @{COMMIT}(%record: !llvm.ptr, %queue: !llvm.ptr, %text: !llvm.ptr) {{
    %two = arith.constant 2 : i64
    %three = arith.constant 3 : i64
    %limit = arith.constant {GROUPS} : i64
    func.call @limit(%record, %queue, %three, %two, %limit, %text)
      : (!llvm.ptr, !llvm.ptr, i64, i64, i64, !llvm.ptr) -> ()
    %number = func.call @count_word(%queue, %two) : (!llvm.ptr, i64) -> i64
    %place = func.call @group(%queue, %number) : (!llvm.ptr, i64) -> !llvm.ptr
    %started = llvm.load %queue : !llvm.ptr -> i64
    llvm.store %started, %place : i64, !llvm.ptr
    return
  }}

  func.func @{AWAIT}(%record: !llvm.ptr, %queue: !llvm.ptr, %keep: i64, %checked: i64, %text: !llvm.ptr) {{
    %zero = arith.constant 0 : i64
    %one = arith.constant 1 : i64
    %two = arith.constant 2 : i64
    %three = arith.constant 3 : i64
    %done_at = func.call @word(%queue, %one) : (!llvm.ptr, i64) -> !llvm.ptr
    %closed_at = func.call @word(%queue, %two) : (!llvm.ptr, i64) -> !llvm.ptr
    %finished_at = func.call @word(%queue, %three) : (!llvm.ptr, i64) -> !llvm.ptr
    %done = llvm.load %done_at : !llvm.ptr -> i64
    %closed = llvm.load %closed_at : !llvm.ptr -> i64
    %finished = llvm.load %finished_at : !llvm.ptr -> i64
    %target = arith.subi %closed, %keep : i64
    %some = arith.cmpi sgt, %target, %finished : i64
    scf.if %some {{
      %last = arith.subi %target, %one : i64
      %end_at = func.call @group(%queue, %last) : (!llvm.ptr, i64) -> !llvm.ptr
      %end = llvm.load %end_at : !llvm.ptr -> i64
      scf.for %i = %done to %end step %one : i64 {{
        func.call @perform(%record, %queue, %i, %checked, %text) : (!llvm.ptr, !llvm.ptr, i64, i64, !llvm.ptr) -> ()
      }}
      llvm.store %end, %done_at : i64, !llvm.ptr
      llvm.store %target, %finished_at : i64, !llvm.ptr
    }}
    return
  }}

  func.func private @perform(%record: !llvm.ptr, %queue: !llvm.ptr, %number: i64, %checked: i64, %text: !llvm.ptr) {{
    %zero = arith.constant 0 : i64
    %one = arith.constant 1 : i64
    %none = arith.constant 0 : i8
    %0 = func.call @entry(%queue, %number) : (!llvm.ptr, i64) -> !llvm.ptr
    %1 = llvm.getelementptr %0[8] : (!llvm.ptr) -> !llvm.ptr, i8
    %2 = llvm.getelementptr %0[16] : (!llvm.ptr) -> !llvm.ptr, i8
    %3 = llvm.getelementptr %0[24] : (!llvm.ptr) -> !llvm.ptr, i8
    %to = llvm.load %0 : !llvm.ptr -> !llvm.ptr
    %from = llvm.load %1 : !llvm.ptr -> !llvm.ptr
    %bytes = llvm.load %2 : !llvm.ptr -> i64
    %valid = llvm.load %3 : !llvm.ptr -> i64
    scf.for %i = %zero to %valid step %one : i64 {{
      %source = llvm.getelementptr %from[%i] : (!llvm.ptr, i64) -> !llvm.ptr, i8
      %target = llvm.getelementptr %to[%i] : (!llvm.ptr, i64) -> !llvm.ptr, i8
      %byte = llvm.load volatile %source : !llvm.ptr -> i8
      llvm.store volatile %byte, %target : i8, !llvm.ptr
    }}
    scf.for %i = %valid to %bytes step %one : i64 {{
      %target = llvm.getelementptr %to[%i] : (!llvm.ptr, i64) -> !llvm.ptr, i8
      llvm.store volatile %none, %target : i8, !llvm.ptr
    }}
    %check = arith.cmpi ne, %checked, %zero : i64
    scf.if %check {{
      %address = llvm.ptrtoint %to : !llvm.ptr to i64
      func.call @gristmill_sim_access(%record, %address, %bytes, %one, %text)
        : (!llvm.ptr, i64, i64, i64, !llvm.ptr) -> ()
    }}
    return
  }}
"""
