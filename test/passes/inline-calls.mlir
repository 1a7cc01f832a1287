// RUN: %gristmill-opt %s --split-input-file --pass-pipeline=inline-calls | filecheck %s

// CHECK-LABEL: func.func @nested_calls
// CHECK-SAME: (%[[X:.*]]: tensor<2xf32>)
// CHECK-NEXT: %[[A:.*]] = "hlo.negate"(%[[X]])
// CHECK-NEXT: %[[B:.*]] = "hlo.add"(%[[A]], %[[X]])
// CHECK-NEXT: %[[C:.*]] = "hlo.negate"(%[[B]])
// CHECK-NEXT: return %[[C]]
// CHECK-NOT: func.func private
func.func @nested_calls(%x: tensor<2xf32>) -> tensor<2xf32> {
  %0 = func.call @outer(%x) : (tensor<2xf32>) -> tensor<2xf32>
  %1 = func.call @inner(%0) : (tensor<2xf32>) -> tensor<2xf32>
  return %1 : tensor<2xf32>
}
func.func private @outer(%x: tensor<2xf32>) -> tensor<2xf32> {
  %0 = func.call @inner(%x) : (tensor<2xf32>) -> tensor<2xf32>
  %1 = "hlo.add"(%0, %x) : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
  return %1 : tensor<2xf32>
}
func.func private @inner(%x: tensor<2xf32>) -> tensor<2xf32> {
  %0 = "hlo.negate"(%x) : (tensor<2xf32>) -> tensor<2xf32>
  return %0 : tensor<2xf32>
}

// -----

// CHECK-LABEL: func.func @results_swapped
// CHECK-SAME: (%[[X:.*]]: tensor<f32>, %[[Y:.*]]: tensor<f32>)
// CHECK-NEXT: return %[[Y]], %[[X]]
func.func @results_swapped(%x: tensor<f32>, %y: tensor<f32>) -> (tensor<f32>, tensor<f32>) {
  %0:2 = func.call @swap(%x, %y) : (tensor<f32>, tensor<f32>) -> (tensor<f32>, tensor<f32>)
  return %0#0, %0#1 : tensor<f32>, tensor<f32>
}
func.func private @swap(%x: tensor<f32>, %y: tensor<f32>) -> (tensor<f32>, tensor<f32>) {
  return %y, %x : tensor<f32>, tensor<f32>
}

// -----

// CHECK-LABEL: func.func @decided_if
// CHECK-SAME: (%[[X:.*]]: tensor<f32>)
// CHECK: %[[R:.*]] = "hlo.sine"(%[[X]])
// CHECK-NEXT: return %[[R]]
func.func @decided_if(%x: tensor<f32>) -> tensor<f32> {
  %p = "hlo.constant"() {value = dense<false> : tensor<i1>} : () -> tensor<i1>
  %0 = "hlov.if"(%p, %x) {branches = [@yes, @no]} : (tensor<i1>, tensor<f32>) -> tensor<f32>
  return %0 : tensor<f32>
}
func.func private @yes(%x: tensor<f32>) -> tensor<f32> {
  %0 = "hlo.cosine"(%x) : (tensor<f32>) -> tensor<f32>
  return %0 : tensor<f32>
}
func.func private @no(%x: tensor<f32>) -> tensor<f32> {
  %0 = "hlo.sine"(%x) : (tensor<f32>) -> tensor<f32>
  return %0 : tensor<f32>
}

// -----

// An index out of range takes the last branch.
// CHECK-LABEL: func.func @decided_case
// CHECK-NOT: hlo.cosine
// CHECK: "hlo.sine"
func.func @decided_case(%x: tensor<f32>) -> tensor<f32> {
  %i = "hlo.constant"() {value = dense<-7> : tensor<i32>} : () -> tensor<i32>
  %0 = "hlov.case"(%i, %x) {branches = [@first, @last]} : (tensor<i32>, tensor<f32>) -> tensor<f32>
  return %0 : tensor<f32>
}
func.func private @first(%x: tensor<f32>) -> tensor<f32> {
  %0 = "hlo.cosine"(%x) : (tensor<f32>) -> tensor<f32>
  return %0 : tensor<f32>
}
func.func private @last(%x: tensor<f32>) -> tensor<f32> {
  %0 = "hlo.sine"(%x) : (tensor<f32>) -> tensor<f32>
  return %0 : tensor<f32>
}

// -----

// CHECK-LABEL: func.func @undecided_if
// CHECK: "hlov.if"
func.func @undecided_if(%p: tensor<i1>, %x: tensor<f32>) -> tensor<f32> {
  %0 = "hlov.if"(%p, %x) {branches = [@same, @same]} : (tensor<i1>, tensor<f32>) -> tensor<f32>
  return %0 : tensor<f32>
}
func.func private @same(%x: tensor<f32>) -> tensor<f32> {
  return %x : tensor<f32>
}

// -----

// CHECK-LABEL: func.func @loop_that_never_runs
// CHECK-SAME: (%[[X:.*]]: tensor<f32>)
// CHECK-NEXT: return %[[X]]
func.func @loop_that_never_runs(%x: tensor<f32>) -> tensor<f32> {
  %0 = "hlov.while"(%x) {cond = @never, body = @body} : (tensor<f32>) -> tensor<f32>
  return %0 : tensor<f32>
}
func.func private @never(%x: tensor<f32>) -> tensor<i1> {
  %0 = "hlo.constant"() {value = dense<false> : tensor<i1>} : () -> tensor<i1>
  return %0 : tensor<i1>
}
func.func private @body(%x: tensor<f32>) -> tensor<f32> {
  %0 = "hlo.sine"(%x) : (tensor<f32>) -> tensor<f32>
  return %0 : tensor<f32>
}
