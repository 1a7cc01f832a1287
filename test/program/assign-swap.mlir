// RUN: %python %S/Inputs/emit.py rt %s | filecheck %s

// A body that swaps its variables: the copies go through a temporary.

// CHECK-LABEL: func.func private @body(
// CHECK-SAME: %{{.+}}: memref<i1>, %[[A:[a-z0-9]+]]: memref<8xf32>, %[[B:[a-z0-9]+]]: memref<8xf32>, %[[ARENA:.+]]: memref
// CHECK: %[[T:.+]] = "rt.slice"(%[[ARENA]])
// CHECK: "rt.copy"(%[[FIRST:.+]], %[[T]])
// CHECK: "rt.copy"(%[[SECOND:.+]], %[[FIRST]])
// CHECK: "rt.copy"(%[[T]], %[[SECOND]])
// CHECK-NEXT: return
func.func @main(%a: tensor<8xf32>, %b: tensor<8xf32>) -> (tensor<8xf32>, tensor<8xf32>) {
  %w:2 = "hlov.while"(%a, %b) {cond = @cond, body = @body}
    : (tensor<8xf32>, tensor<8xf32>) -> (tensor<8xf32>, tensor<8xf32>)
  return %w#0, %w#1 : tensor<8xf32>, tensor<8xf32>
}
func.func private @cond(%a: tensor<8xf32>, %b: tensor<8xf32>) -> tensor<i1> {
  %p = "hlov.fusion"(%a) {calls = @k_less, kind = "loop"} : (tensor<8xf32>) -> tensor<i1>
  return %p : tensor<i1>
}
func.func private @body(%a: tensor<8xf32>, %b: tensor<8xf32>) -> (tensor<8xf32>, tensor<8xf32>) {
  return %b, %a : tensor<8xf32>, tensor<8xf32>
}
func.func private @k_less(tensor<8xf32>) -> tensor<i1>
