// RUN: %gristmill-opt %s --split-input-file --pass-pipeline=hoist-products,verify-hlo | filecheck %s

// Step t multiplies slice t of %xs by the invariant %w: one product before the loop, its slices inside.
// CHECK-LABEL: func.func @main
// CHECK-SAME: (%[[XS:.*]]: tensor<5x8x16xf32>, %[[W:.*]]: tensor<16x4xf32>
// CHECK: %[[P:.*]] = "hlo.dot_general"(%[[XS]], %[[W]]) {{.*}}lhs_contracting_dimensions = array<i64: 2>{{.*}} -> tensor<5x8x4xf32>
// CHECK: "hlov.while"({{.*}}, %[[P]]) {body = @body_1, cond = @cond_1}
// CHECK: func.func private @body_1
// CHECK-NOT: hlo.dot_general
// CHECK: "hlo.dynamic_slice"{{.*}} -> tensor<1x8x4xf32>
// CHECK: return
func.func @main(%xs: tensor<5x8x16xf32>, %w: tensor<16x4xf32>, %h: tensor<8x4xf32>) -> tensor<8x4xf32> {
  %zero = "hlo.constant"() {value = dense<0> : tensor<i32>} : () -> tensor<i32>
  %0:4 = "hlov.while"(%xs, %w, %zero, %h) {cond = @cond, body = @body} : (tensor<5x8x16xf32>, tensor<16x4xf32>, tensor<i32>, tensor<8x4xf32>) -> (tensor<5x8x16xf32>, tensor<16x4xf32>, tensor<i32>, tensor<8x4xf32>)
  return %0#3 : tensor<8x4xf32>
}
func.func private @cond(%xs: tensor<5x8x16xf32>, %w: tensor<16x4xf32>, %i: tensor<i32>, %h: tensor<8x4xf32>) -> tensor<i1> {
  %n = "hlo.constant"() {value = dense<5> : tensor<i32>} : () -> tensor<i32>
  %0 = "hlo.compare"(%i, %n) {direction = "LT", type = "SIGNED"} : (tensor<i32>, tensor<i32>) -> tensor<i1>
  return %0 : tensor<i1>
}
func.func private @body(%xs: tensor<5x8x16xf32>, %w: tensor<16x4xf32>, %i: tensor<i32>, %h: tensor<8x4xf32>) -> (tensor<5x8x16xf32>, tensor<16x4xf32>, tensor<i32>, tensor<8x4xf32>) {
  %zero = "hlo.constant"() {value = dense<0> : tensor<i32>} : () -> tensor<i32>
  %one = "hlo.constant"() {value = dense<1> : tensor<i32>} : () -> tensor<i32>
  %0 = "hlo.dynamic_slice"(%xs, %i, %zero, %zero) {slice_sizes = array<i64: 1, 8, 16>} : (tensor<5x8x16xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x8x16xf32>
  %1 = "hlo.reshape"(%0) : (tensor<1x8x16xf32>) -> tensor<8x16xf32>
  %2 = "hlo.dot_general"(%1, %w) {lhs_batching_dimensions = array<i64>, rhs_batching_dimensions = array<i64>, lhs_contracting_dimensions = array<i64: 1>, rhs_contracting_dimensions = array<i64: 0>} : (tensor<8x16xf32>, tensor<16x4xf32>) -> tensor<8x4xf32>
  %3 = "hlo.add"(%h, %2) : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<8x4xf32>
  %4 = "hlo.add"(%i, %one) : (tensor<i32>, tensor<i32>) -> tensor<i32>
  return %xs, %w, %4, %3 : tensor<5x8x16xf32>, tensor<16x4xf32>, tensor<i32>, tensor<8x4xf32>
}

// -----

// The loop stops before the last slice: products that no step asks for would be computed, so nothing moves.
// CHECK-LABEL: func.func @main
// CHECK-NOT: hlo.dot_general
// CHECK: "hlov.while"({{.*}}) {body = @body, cond = @cond}
func.func @main(%xs: tensor<9x8x16xf32>, %w: tensor<16x4xf32>, %h: tensor<8x4xf32>) -> tensor<8x4xf32> {
  %zero = "hlo.constant"() {value = dense<0> : tensor<i32>} : () -> tensor<i32>
  %0:4 = "hlov.while"(%xs, %w, %zero, %h) {cond = @cond, body = @body} : (tensor<9x8x16xf32>, tensor<16x4xf32>, tensor<i32>, tensor<8x4xf32>) -> (tensor<9x8x16xf32>, tensor<16x4xf32>, tensor<i32>, tensor<8x4xf32>)
  return %0#3 : tensor<8x4xf32>
}
func.func private @cond(%xs: tensor<9x8x16xf32>, %w: tensor<16x4xf32>, %i: tensor<i32>, %h: tensor<8x4xf32>) -> tensor<i1> {
  %n = "hlo.constant"() {value = dense<5> : tensor<i32>} : () -> tensor<i32>
  %0 = "hlo.compare"(%i, %n) {direction = "LT", type = "SIGNED"} : (tensor<i32>, tensor<i32>) -> tensor<i1>
  return %0 : tensor<i1>
}
func.func private @body(%xs: tensor<9x8x16xf32>, %w: tensor<16x4xf32>, %i: tensor<i32>, %h: tensor<8x4xf32>) -> (tensor<9x8x16xf32>, tensor<16x4xf32>, tensor<i32>, tensor<8x4xf32>) {
  %zero = "hlo.constant"() {value = dense<0> : tensor<i32>} : () -> tensor<i32>
  %one = "hlo.constant"() {value = dense<1> : tensor<i32>} : () -> tensor<i32>
  %0 = "hlo.dynamic_slice"(%xs, %i, %zero, %zero) {slice_sizes = array<i64: 1, 8, 16>} : (tensor<9x8x16xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x8x16xf32>
  %1 = "hlo.reshape"(%0) : (tensor<1x8x16xf32>) -> tensor<8x16xf32>
  %2 = "hlo.dot_general"(%1, %w) {lhs_batching_dimensions = array<i64>, rhs_batching_dimensions = array<i64>, lhs_contracting_dimensions = array<i64: 1>, rhs_contracting_dimensions = array<i64: 0>} : (tensor<8x16xf32>, tensor<16x4xf32>) -> tensor<8x4xf32>
  %3 = "hlo.add"(%h, %2) : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<8x4xf32>
  %4 = "hlo.add"(%i, %one) : (tensor<i32>, tensor<i32>) -> tensor<i32>
  return %xs, %w, %4, %3 : tensor<9x8x16xf32>, tensor<16x4xf32>, tensor<i32>, tensor<8x4xf32>
}
