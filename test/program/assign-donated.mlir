// RUN: %python %S/Inputs/emit.py rt %s | filecheck %s

// %kv is donated to the first result, so that may be the same memory: it is updated in place where the old value
// is dead, and the second result, donated %state, is computed aside because %state is needed to the end.

// CHECK-LABEL: func.func @main(
// CHECK: "rtv.launch"(%arg0, %arg2) {kernel = @k_update
// CHECK: "rtv.launch"(%arg1, %[[T:[a-z0-9]+]]) {kernel = @k_shift
// CHECK: "rtv.launch"(%[[T]], %arg1, %arg4) {kernel = @k_sum
// CHECK: "rt.copy"(%[[T]], %arg3)
// CHECK-NEXT: return
func.func @main(%kv: tensor<64xf32> {gristmill.donated, gristmill.alias = 0 : i64},
                %state: tensor<64xf32> {gristmill.donated, gristmill.alias = 1 : i64})
    -> (tensor<64xf32>, tensor<64xf32>, tensor<f32>) {
  %0 = "hlov.fusion"(%kv) {calls = @k_update, kind = "update"} : (tensor<64xf32>) -> tensor<64xf32>
  %1 = "hlov.fusion"(%state) {calls = @k_shift, kind = "loop"} : (tensor<64xf32>) -> tensor<64xf32>
  %2 = "hlov.fusion"(%1, %state) {calls = @k_sum, kind = "loop"} : (tensor<64xf32>, tensor<64xf32>) -> tensor<f32>
  return %0, %1, %2 : tensor<64xf32>, tensor<64xf32>, tensor<f32>
}
func.func private @k_update(tensor<64xf32>) -> tensor<64xf32>
  attributes {test.inplace = array<i64: 0, 0>, test.kind = "update"}
func.func private @k_shift(tensor<64xf32>) -> tensor<64xf32>
func.func private @k_sum(tensor<64xf32>, tensor<64xf32>) -> tensor<f32>
