// RUN: %gristmill-opt %s --pass-pipeline=dce-hlo | filecheck %s

// CHECK-LABEL: func.func @dead_chain
// CHECK-SAME: (%[[X:.*]]: tensor<f32>)
// CHECK-NEXT: return %[[X]]
func.func @dead_chain(%x: tensor<f32>) -> tensor<f32> {
  %0 = "hlo.sine"(%x) : (tensor<f32>) -> tensor<f32>
  %1 = "hlo.sine"(%0) : (tensor<f32>) -> tensor<f32>
  %2 = "hlo.constant"() {value = dense_resource<unused> : tensor<f32>} : () -> tensor<f32>
  return %x : tensor<f32>
}

// CHECK-LABEL: func.func @side_effects_stay
// CHECK-NEXT: "hlov.custom_call"(%{{.*}}) {call_target_name = "print"
// CHECK-NEXT: return
func.func @side_effects_stay(%x: tensor<f32>) {
  "hlov.custom_call"(%x) {call_target_name = "print", has_side_effect = true} : (tensor<f32>) -> ()
  %0 = "hlov.custom_call"(%x) {call_target_name = "pure"} : (tensor<f32>) -> tensor<f32>
  return
}

// CHECK-LABEL: func.func @nested_side_effects_stay
// CHECK-NEXT: "hlov.if"(%{{.*}}) {branches = [@printing, @quiet]}
// CHECK-NEXT: return
func.func @nested_side_effects_stay(%p: tensor<i1>, %x: tensor<f32>) {
  %0 = "hlov.if"(%p, %x) {branches = [@printing, @quiet]} : (tensor<i1>, tensor<f32>) -> tensor<f32>
  %1 = "hlov.if"(%p, %x) {branches = [@quiet, @quiet]} : (tensor<i1>, tensor<f32>) -> tensor<f32>
  return
}
func.func private @printing(%x: tensor<f32>) -> tensor<f32> {
  "hlov.custom_call"(%x) {call_target_name = "print", has_side_effect = true} : (tensor<f32>) -> ()
  return %x : tensor<f32>
}
func.func private @quiet(%x: tensor<f32>) -> tensor<f32> {
  return %x : tensor<f32>
}

// CHECK-LABEL: func.func @one_result_of_two_used
// CHECK: "hlov.sort"
func.func @one_result_of_two_used(%x: tensor<4xf32>, %y: tensor<4xi32>) -> tensor<4xi32> {
  %0:2 = "hlov.sort"(%x, %y) {comparator = @less, dimension = 0 : i64, is_stable = true} : (tensor<4xf32>, tensor<4xi32>) -> (tensor<4xf32>, tensor<4xi32>)
  return %0#1 : tensor<4xi32>
}

// CHECK: func.func private @less
// CHECK-NOT: func.func private @unreferenced
// CHECK-NOT: unused: "0x
func.func private @less(%a: tensor<f32>, %b: tensor<f32>, %c: tensor<i32>, %d: tensor<i32>) -> tensor<i1> {
  %0 = "hlo.compare"(%a, %b) {direction = "LT", type = "FLOAT"} : (tensor<f32>, tensor<f32>) -> tensor<i1>
  return %0 : tensor<i1>
}
func.func private @unreferenced(%a: tensor<f32>) -> tensor<f32> {
  return %a : tensor<f32>
}

{-#
  dialect_resources: {
    builtin: {
      unused: "0x400000000000803F"
    }
  }
#-}
