// RUN: %python %S/Inputs/emit.py rt %s | filecheck %s

// Only outputs that are an input, a constant or a second copy of another output are copied.

// CHECK-LABEL: func.func @main(
// CHECK: "rtv.launch"(%arg0, %arg1)
// CHECK-NEXT: "rt.copy"(%arg0, %arg2)
// CHECK-NEXT: %[[K:.+]] = "rt.constant"() {index = 0 : i64, name = "c0"}
// CHECK-NEXT: "rt.copy"(%[[K]], %arg3)
// CHECK-NEXT: "rt.copy"(%arg1, %arg4)
// CHECK-NOT: rt.copy
// CHECK: return
func.func @main(%x: tensor<64xf32>) -> (tensor<64xf32>, tensor<64xf32>, tensor<64xf32>, tensor<64xf32>) {
  %c = "hlo.constant"() {value = dense<1.0> : tensor<64xf32>} : () -> tensor<64xf32>
  %0 = "hlov.fusion"(%x) {calls = @k_exp, kind = "loop"} : (tensor<64xf32>) -> tensor<64xf32>
  return %0, %x, %c, %0 : tensor<64xf32>, tensor<64xf32>, tensor<64xf32>, tensor<64xf32>
}
func.func private @k_exp(tensor<64xf32>) -> tensor<64xf32>
