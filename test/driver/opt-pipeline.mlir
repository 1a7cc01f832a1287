// RUN: %gristmill-opt %s --pass-pipeline='builtin.module(verify-hlo,func.func(canonicalize),cse)' | filecheck %s
// RUN: not %gristmill-opt %s --pass-pipeline=verify-hol 2>&1 | filecheck %s --check-prefix=UNKNOWN

// UNKNOWN: gristmill-opt: error: 'verify-hol' is no pass of ours
// UNKNOWN-SAME: did you mean 'verify-hlo'?

// CHECK-LABEL: func.func @upstream_canonicalizer_runs
// CHECK: %[[C:.*]] = arith.constant 3 : i32
// CHECK-NEXT: return %[[C]]
func.func @upstream_canonicalizer_runs() -> i32 {
  %0 = arith.constant 1 : i32
  %1 = arith.constant 2 : i32
  %2 = arith.addi %0, %1 : i32
  return %2 : i32
}
