// RUN: %python %S/Inputs/emit.py rt %s | filecheck %s

// Each branch writes the result's buffer itself; one that returns its argument copies it.

// CHECK-LABEL: func.func @main(
// CHECK: "rtv.conditional"(%arg0, %arg1, %arg2) {branches = [@yes, @no]}
// CHECK-NEXT: return
// CHECK-LABEL: func.func private @yes(
// CHECK-SAME: %{{.+}}: memref<i1>, %[[X:[a-z0-9]+]]: memref<8xf32>, %[[Y:[a-z0-9]+]]: memref<8xf32>
// CHECK-NEXT: "rtv.launch"(%[[X]], %[[Y]]) {kernel = @k_exp
// CHECK-NEXT: return
// CHECK-LABEL: func.func private @no(
// CHECK-SAME: %{{.+}}: memref<i1>, %[[X:[a-z0-9]+]]: memref<8xf32>, %[[Y:[a-z0-9]+]]: memref<8xf32>
// CHECK-NEXT: "rt.copy"(%[[X]], %[[Y]])
// CHECK-NEXT: return
func.func @main(%p: tensor<i1>, %x: tensor<8xf32>) -> tensor<8xf32> {
  %r = "hlov.if"(%p, %x) {branches = [@yes, @no]} : (tensor<i1>, tensor<8xf32>) -> tensor<8xf32>
  return %r : tensor<8xf32>
}
func.func private @yes(%x: tensor<8xf32>) -> tensor<8xf32> {
  %y = "hlov.fusion"(%x) {calls = @k_exp, kind = "loop"} : (tensor<8xf32>) -> tensor<8xf32>
  return %y : tensor<8xf32>
}
func.func private @no(%x: tensor<8xf32>) -> tensor<8xf32> {
  return %x : tensor<8xf32>
}
func.func private @k_exp(tensor<8xf32>) -> tensor<8xf32>
