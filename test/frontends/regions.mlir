// SPDX-License-Identifier: Apache-2.0
// RUN: %gristmill-opt %s | filecheck %s
// Regions become private functions; what they captured becomes explicit.

// CHECK-LABEL: func.func public @main(%arg0: tensor<8xf32>, %arg1: tensor<f32>, %arg2: tensor<i32>)
func.func @main(%x: tensor<8xf32>, %c: tensor<f32>, %n: tensor<i32>) -> (tensor<f32>, tensor<f32>, tensor<8xf32>) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %i0 = stablehlo.constant dense<0> : tensor<i32>

  // The captured argument follows the operands; the captured constant is cloned into the function.
  // CHECK: "hlov.reduce"(%arg0, %{{.*}}, %arg1) {dimensions = array<i64: 0>, to_apply = @reduce_body_0}
  %0 = "stablehlo.reduce"(%x, %zero) <{dimensions = array<i64: 0>}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %s = stablehlo.add %a, %b : tensor<f32>
    %t = stablehlo.multiply %s, %c : tensor<f32>
    %u = stablehlo.maximum %t, %zero : tensor<f32>
    stablehlo.return %u : tensor<f32>
  }) : (tensor<8xf32>, tensor<f32>) -> tensor<f32>

  // Captures of both regions become carried values, which the body returns unchanged.
  // CHECK: %[[LOOP:.*]]:4 = "hlov.while"(%{{.*}}, %arg1, %arg2, %arg0) {body = @while_body_0, cond = @while_cond_0} : (tensor<i32>, tensor<f32>, tensor<i32>, tensor<8xf32>)
  %1:2 = stablehlo.while(%i = %i0, %acc = %c) : tensor<i32>, tensor<f32>
  cond {
    %p = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %p : tensor<i1>
  } do {
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    // A capture from two levels up passes through the loop's function.
    %q = stablehlo.compare LT, %acc, %acc : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %r = "stablehlo.if"(%q) ({
      %part = stablehlo.slice %x [0:1] : (tensor<8xf32>) -> tensor<1xf32>
      %scalar = stablehlo.reshape %part : (tensor<1xf32>) -> tensor<f32>
      stablehlo.return %scalar : tensor<f32>
    }, {
      stablehlo.return %acc : tensor<f32>
    }) : (tensor<i1>) -> tensor<f32>
    stablehlo.return %next, %r : tensor<i32>, tensor<f32>
  }

  // CHECK: "hlov.sort"(%arg0) {comparator = @sort_comparator_0, dimension = 0 : i64, is_stable = true}
  %2 = "stablehlo.sort"(%x) <{is_stable = true}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %p = stablehlo.compare GT, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %p : tensor<i1>
  }) : (tensor<8xf32>) -> tensor<8xf32>
  // CHECK: return %{{.*}}, %[[LOOP]]#1, %{{.*}}
  return %0, %1#1, %2 : tensor<f32>, tensor<f32>, tensor<8xf32>
}

// CHECK-LABEL: func.func private @reduce_body_0(%arg0: tensor<f32>, %arg1: tensor<f32>, %arg2: tensor<f32>) -> tensor<f32>
// CHECK: %[[ZERO:.*]] = "hlo.constant"() {value = dense<0.000000e+00> : tensor<f32>}
// CHECK: "hlo.multiply"(%{{.*}}, %arg2)
// CHECK: "hlo.maximum"(%{{.*}}, %[[ZERO]])

// CHECK-LABEL: func.func private @while_cond_0(%arg0: tensor<i32>, %arg1: tensor<f32>, %arg2: tensor<i32>, %arg3: tensor<8xf32>) -> tensor<i1>
// CHECK: "hlo.compare"(%arg0, %arg2)

// CHECK-LABEL: func.func private @while_body_0(%arg0: tensor<i32>, %arg1: tensor<f32>, %arg2: tensor<i32>, %arg3: tensor<8xf32>) -> (tensor<i32>, tensor<f32>, tensor<i32>, tensor<8xf32>)
// CHECK: %[[IF:.*]] = "hlov.if"(%{{.*}}, %arg3, %arg1) {branches = [@if_true_0, @if_false_0]}
// CHECK: return %{{.*}}, %[[IF]], %arg2, %arg3

// CHECK-LABEL: func.func private @if_true_0(%arg0: tensor<8xf32>, %arg1: tensor<f32>)
// CHECK-LABEL: func.func private @if_false_0(%arg0: tensor<8xf32>, %arg1: tensor<f32>)
// CHECK: return %arg1
