// RUN: %gristmill check %s | filecheck %s --check-prefix=PASS
// RUN: sed 's/7.0, 9.0/7.0, 9.5/' %s > %t.mlir
// RUN: not %gristmill check %t.mlir | filecheck %s --check-prefix=FAIL

// PASS: 1 passed, 0 failed

// FAIL: modules  cause
// FAIL-NEXT: 1  wrong value: close
// FAIL: 1 of 2 elements differ; first at [1]: got 9.0, want 9.5
// FAIL: {{^}}0 passed, 1 failed

func.func public @main() {
  %0 = call @inputs() : () -> tensor<2xf32>
  %1 = call @expected() : () -> tensor<2xf32>
  %2 = stablehlo.constant dense<5.0> : tensor<2xf32>
  %3 = stablehlo.add %0, %2 : tensor<2xf32>
  stablehlo.custom_call @check.expect_close(%3, %1) {has_side_effect = true}
    : (tensor<2xf32>, tensor<2xf32>) -> ()
  return
}
func.func private @inputs() -> tensor<2xf32> {
  %0 = stablehlo.constant dense<[2.0, 4.0]> : tensor<2xf32>
  return %0 : tensor<2xf32>
}
func.func private @expected() -> tensor<2xf32> {
  %0 = stablehlo.constant dense<[7.0, 9.0]> : tensor<2xf32>
  return %0 : tensor<2xf32>
}
