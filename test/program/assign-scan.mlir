// RUN: %python %S/Inputs/emit.py rt %s | filecheck %s

// A scan: the stacked results are updated in place in the output's memory and never copied, although
// program order updates them before their last other reader; invariants are read where they are.

// CHECK-LABEL: func.func @main(
// CHECK: "rtv.launch"(%arg1) {kernel = @k_zeros
// CHECK: %[[K:.+]] = "rt.constant"
// CHECK: "rt.copy"(%[[K]], %{{.+}}) : (memref<i32>, memref<i32>) -> ()
// CHECK-NOT: rt.copy
// CHECK: "rtv.while"({{.*}}%arg0{{.*}}%arg1
// CHECK-SAME: {body = @body, cond = @cond}
// CHECK-NEXT: return
// CHECK-LABEL: func.func private @body(
// CHECK-NOT: rt.copy
// CHECK: kernel = @k_row
// CHECK: kernel = @k_last
// CHECK: "rtv.launch"(%[[YS:[a-z0-9]+]], %{{.+}}, %{{.+}}, %[[YS]]) {kernel = @k_update
// CHECK: "rtv.launch"(%[[I:[a-z0-9]+]], %[[I]]) {kernel = @k_next
// CHECK-NOT: rt.copy
// CHECK: return
func.func @main(%xs: tensor<100x8xf32>) -> tensor<100x8xf32> {
  %zero = "hlo.constant"() {value = dense<0> : tensor<i32>} : () -> tensor<i32>
  %ys = "hlov.fusion"() {calls = @k_zeros, kind = "loop"} : () -> tensor<100x8xf32>
  %w:3 = "hlov.while"(%zero, %xs, %ys) {cond = @cond, body = @body}
    : (tensor<i32>, tensor<100x8xf32>, tensor<100x8xf32>) -> (tensor<i32>, tensor<100x8xf32>, tensor<100x8xf32>)
  return %w#2 : tensor<100x8xf32>
}
func.func private @cond(%i: tensor<i32>, %xs: tensor<100x8xf32>, %ys: tensor<100x8xf32>) -> tensor<i1> {
  %p = "hlov.fusion"(%i) {calls = @k_less, kind = "loop"} : (tensor<i32>) -> tensor<i1>
  return %p : tensor<i1>
}
func.func private @body(%i: tensor<i32>, %xs: tensor<100x8xf32>, %ys: tensor<100x8xf32>)
    -> (tensor<i32>, tensor<100x8xf32>, tensor<100x8xf32>) {
  %next = "hlov.fusion"(%i) {calls = @k_next, kind = "loop"} : (tensor<i32>) -> tensor<i32>
  %row = "hlov.fusion"(%xs, %i) {calls = @k_row, kind = "loop"} : (tensor<100x8xf32>, tensor<i32>) -> tensor<8xf32>
  %new = "hlov.fusion"(%ys, %row, %i) {calls = @k_update, kind = "update"}
    : (tensor<100x8xf32>, tensor<8xf32>, tensor<i32>) -> tensor<100x8xf32>
  %last = "hlov.fusion"(%ys) {calls = @k_last, kind = "loop"} : (tensor<100x8xf32>) -> tensor<f32>
  return %next, %xs, %new : tensor<i32>, tensor<100x8xf32>, tensor<100x8xf32>
}
func.func private @k_zeros() -> tensor<100x8xf32>
func.func private @k_less(tensor<i32>) -> tensor<i1>
func.func private @k_next(tensor<i32>) -> tensor<i32> attributes {test.inplace = array<i64: 0, 0>}
func.func private @k_row(tensor<100x8xf32>, tensor<i32>) -> tensor<8xf32>
func.func private @k_last(tensor<100x8xf32>) -> tensor<f32>
func.func private @k_update(tensor<100x8xf32>, tensor<8xf32>, tensor<i32>) -> tensor<100x8xf32>
  attributes {test.inplace = array<i64: 0, 0>, test.kind = "update"}
