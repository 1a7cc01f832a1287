// RUN: %python %S/Inputs/emit.py rt %s | filecheck %s

// A chain of elementwise kernels computes in place, in the output's memory; the input is never written.

// CHECK-LABEL: func.func @main(
// CHECK-SAME: %[[X:[a-z0-9]+]]: memref<64xf32> {{{.*}}rt.input}
// CHECK-SAME: %[[Y:[a-z0-9]+]]: memref<8x8xf32> {{{.*}}rt.output}
// CHECK-NOT: rt.allocate
// CHECK: %[[V:.+]] = "rt.slice"(%[[Y]]) {offset = 0 : i64} : (memref<8x8xf32>) -> memref<64xf32>
// CHECK-NEXT: "rtv.launch"(%[[X]], %[[V]])
// CHECK-NEXT: "rtv.launch"(%[[V]], %[[V]])
// CHECK-NEXT: "rtv.launch"(%[[V]], %[[V]])
// CHECK-NEXT: return
func.func @main(%x: tensor<64xf32>) -> tensor<8x8xf32> {
  %0 = "hlov.fusion"(%x) {calls = @k_exp, kind = "loop"} : (tensor<64xf32>) -> tensor<64xf32>
  %1 = "hlov.fusion"(%0) {calls = @k_exp, kind = "loop"} : (tensor<64xf32>) -> tensor<64xf32>
  %2 = "hlov.fusion"(%1) {calls = @k_exp, kind = "loop"} : (tensor<64xf32>) -> tensor<64xf32>
  %3 = "hlo.reshape"(%2) : (tensor<64xf32>) -> tensor<8x8xf32>
  return %3 : tensor<8x8xf32>
}
func.func private @k_exp(tensor<64xf32>) -> tensor<64xf32> attributes {test.inplace = array<i64: 0, 0>}
