// RUN: %gristmill-opt %s --pass-pipeline=canonicalize-hlo | filecheck %s
// RUN: %gristmill-opt %s --pass-pipeline='canonicalize-hlo{remove-barriers=true}' | filecheck %s --check-prefix=BARRIER

// CHECK-LABEL: func.func @neutral_integers
// CHECK-SAME: (%[[X:.*]]: tensor<4xi32>)
// CHECK-NEXT: return %[[X]]
func.func @neutral_integers(%x: tensor<4xi32>) -> tensor<4xi32> {
  %zero = "hlo.constant"() {value = dense<0> : tensor<4xi32>} : () -> tensor<4xi32>
  %one = "hlo.constant"() {value = dense<1> : tensor<4xi32>} : () -> tensor<4xi32>
  %ones = "hlo.constant"() {value = dense<-1> : tensor<4xi32>} : () -> tensor<4xi32>
  %0 = "hlo.add"(%zero, %x) : (tensor<4xi32>, tensor<4xi32>) -> tensor<4xi32>
  %1 = "hlo.multiply"(%0, %one) : (tensor<4xi32>, tensor<4xi32>) -> tensor<4xi32>
  %2 = "hlo.subtract"(%1, %zero) : (tensor<4xi32>, tensor<4xi32>) -> tensor<4xi32>
  %3 = "hlo.and"(%ones, %2) : (tensor<4xi32>, tensor<4xi32>) -> tensor<4xi32>
  %4 = "hlo.or"(%3, %zero) : (tensor<4xi32>, tensor<4xi32>) -> tensor<4xi32>
  %5 = "hlo.divide"(%4, %one) : (tensor<4xi32>, tensor<4xi32>) -> tensor<4xi32>
  return %5 : tensor<4xi32>
}

// x + 0.0 turns -0.0 into 0.0, and x * 0.0 may be NaN: both stay.
// CHECK-LABEL: func.func @floats_keep_their_bits
// CHECK-SAME: (%[[X:.*]]: tensor<f32>)
// CHECK: "hlo.add"(%[[X]]
// CHECK: "hlo.multiply"(%[[X]]
// CHECK: return %{{.*}}, %{{.*}}, %[[X]], %[[X]], %[[X]]
func.func @floats_keep_their_bits(%x: tensor<f32>) -> (tensor<f32>, tensor<f32>, tensor<f32>, tensor<f32>, tensor<f32>) {
  %zero = "hlo.constant"() {value = dense<0.0> : tensor<f32>} : () -> tensor<f32>
  %minus = "hlo.constant"() {value = dense<-0.0> : tensor<f32>} : () -> tensor<f32>
  %one = "hlo.constant"() {value = dense<1.0> : tensor<f32>} : () -> tensor<f32>
  %0 = "hlo.add"(%x, %zero) : (tensor<f32>, tensor<f32>) -> tensor<f32>
  %1 = "hlo.multiply"(%x, %zero) : (tensor<f32>, tensor<f32>) -> tensor<f32>
  %2 = "hlo.add"(%x, %minus) : (tensor<f32>, tensor<f32>) -> tensor<f32>
  %3 = "hlo.subtract"(%x, %zero) : (tensor<f32>, tensor<f32>) -> tensor<f32>
  %4 = "hlo.multiply"(%one, %x) : (tensor<f32>, tensor<f32>) -> tensor<f32>
  return %0, %1, %2, %3, %4 : tensor<f32>, tensor<f32>, tensor<f32>, tensor<f32>, tensor<f32>
}

// CHECK-LABEL: func.func @division_by_powers_of_two
// CHECK-SAME: (%[[X:.*]]: tensor<f32>)
// CHECK-DAG: %[[Q:.*]] = "hlo.constant"() {value = dense<2.500000e-01> : tensor<f32>}
// CHECK-DAG: "hlo.multiply"(%[[X]], %[[Q]])
// CHECK-DAG: %[[T:.*]] = "hlo.constant"() {value = dense<3.000000e+00> : tensor<f32>}
// CHECK-DAG: "hlo.divide"(%[[X]], %[[T]])
func.func @division_by_powers_of_two(%x: tensor<f32>) -> (tensor<f32>, tensor<f32>) {
  %four = "hlo.constant"() {value = dense<4.0> : tensor<f32>} : () -> tensor<f32>
  %three = "hlo.constant"() {value = dense<3.0> : tensor<f32>} : () -> tensor<f32>
  %0 = "hlo.divide"(%x, %four) : (tensor<f32>, tensor<f32>) -> tensor<f32>
  %1 = "hlo.divide"(%x, %three) : (tensor<f32>, tensor<f32>) -> tensor<f32>
  return %0, %1 : tensor<f32>, tensor<f32>
}

// CHECK-LABEL: func.func @powers
// CHECK-SAME: (%[[X:.*]]: tensor<f32>, %[[I:.*]]: tensor<i32>)
// CHECK: %[[S:.*]] = "hlo.multiply"(%[[X]], %[[X]])
// CHECK: "hlo.power"
// CHECK: %[[I2:.*]] = "hlo.multiply"(%[[I]], %[[I]])
// CHECK: "hlo.multiply"(%[[I]], %[[I2]])
func.func @powers(%x: tensor<f32>, %i: tensor<i32>) -> (tensor<f32>, tensor<f32>, tensor<i32>) {
  %two = "hlo.constant"() {value = dense<2.0> : tensor<f32>} : () -> tensor<f32>
  %half = "hlo.constant"() {value = dense<0.5> : tensor<f32>} : () -> tensor<f32>
  %three = "hlo.constant"() {value = dense<3> : tensor<i32>} : () -> tensor<i32>
  %0 = "hlo.power"(%x, %two) : (tensor<f32>, tensor<f32>) -> tensor<f32>
  %1 = "hlo.power"(%x, %half) : (tensor<f32>, tensor<f32>) -> tensor<f32>
  %2 = "hlo.power"(%i, %three) : (tensor<i32>, tensor<i32>) -> tensor<i32>
  return %0, %1, %2 : tensor<f32>, tensor<f32>, tensor<i32>
}

// CHECK-LABEL: func.func @involutions
// CHECK-SAME: (%[[X:.*]]: tensor<2x3xf32>)
// CHECK-NEXT: return %[[X]], %[[X]], %[[X]]
func.func @involutions(%x: tensor<2x3xf32>) -> (tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>) {
  %0 = "hlo.negate"(%x) : (tensor<2x3xf32>) -> tensor<2x3xf32>
  %1 = "hlo.negate"(%0) : (tensor<2x3xf32>) -> tensor<2x3xf32>
  %2 = "hlo.transpose"(%x) {permutation = array<i64: 1, 0>} : (tensor<2x3xf32>) -> tensor<3x2xf32>
  %3 = "hlo.transpose"(%2) {permutation = array<i64: 1, 0>} : (tensor<3x2xf32>) -> tensor<2x3xf32>
  %4 = "hlo.reverse"(%x) {dimensions = array<i64: 0, 1>} : (tensor<2x3xf32>) -> tensor<2x3xf32>
  %5 = "hlo.reverse"(%4) {dimensions = array<i64: 1, 0>} : (tensor<2x3xf32>) -> tensor<2x3xf32>
  return %1, %3, %5 : tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>
}

// bf16 -> f32 -> bf16 loses nothing, f32 -> bf16 -> f32 does.
// CHECK-LABEL: func.func @conversions
// CHECK-SAME: (%[[X:.*]]: tensor<f32>, %[[B:.*]]: tensor<bf16>)
// CHECK-NEXT: %[[N:.*]] = "hlo.convert"(%[[X]])
// CHECK-NEXT: %[[W:.*]] = "hlo.convert"(%[[N]])
// CHECK-NEXT: return %[[W]], %[[B]]
func.func @conversions(%x: tensor<f32>, %b: tensor<bf16>) -> (tensor<f32>, tensor<bf16>) {
  %0 = "hlo.convert"(%x) : (tensor<f32>) -> tensor<bf16>
  %1 = "hlo.convert"(%0) : (tensor<bf16>) -> tensor<f32>
  %2 = "hlo.convert"(%b) : (tensor<bf16>) -> tensor<f32>
  %3 = "hlo.convert"(%2) : (tensor<f32>) -> tensor<bf16>
  return %1, %3 : tensor<f32>, tensor<bf16>
}

// -5 wraps to 251 as an integer, but not as a float.
// CHECK-LABEL: func.func @conversions_out_of_range
// CHECK-COUNT-2: "hlo.convert"
// CHECK: return
func.func @conversions_out_of_range(%x: tensor<i8>) -> tensor<ui8> {
  %0 = "hlo.convert"(%x) : (tensor<i8>) -> tensor<f32>
  %1 = "hlo.convert"(%0) : (tensor<f32>) -> tensor<ui8>
  return %1 : tensor<ui8>
}

// CHECK-LABEL: func.func @selections
// CHECK-SAME: (%[[P:.*]]: tensor<2xi1>, %[[X:.*]]: tensor<2xf32>, %[[Y:.*]]: tensor<2xf32>)
// CHECK-NEXT: %[[S:.*]] = "hlo.select"(%[[P]], %[[Y]], %[[X]])
// CHECK-NEXT: return %[[X]], %[[X]], %[[S]]
func.func @selections(%p: tensor<2xi1>, %x: tensor<2xf32>, %y: tensor<2xf32>) -> (tensor<2xf32>, tensor<2xf32>, tensor<2xf32>) {
  %true = "hlo.constant"() {value = dense<true> : tensor<2xi1>} : () -> tensor<2xi1>
  %0 = "hlo.select"(%true, %x, %y) : (tensor<2xi1>, tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
  %1 = "hlo.select"(%p, %x, %x) : (tensor<2xi1>, tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
  %n = "hlo.not"(%p) : (tensor<2xi1>) -> tensor<2xi1>
  %2 = "hlo.select"(%n, %x, %y) : (tensor<2xi1>, tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
  return %0, %1, %2 : tensor<2xf32>, tensor<2xf32>, tensor<2xf32>
}

// NaN makes both a < b and a >= b false.
// CHECK-LABEL: func.func @negated_comparisons
// CHECK: "hlo.compare"(%{{.*}}) {direction = "GE", type = "SIGNED"}
// CHECK: "hlo.compare"(%{{.*}}) {direction = "LT", type = "FLOAT"}
// CHECK: "hlo.not"
func.func @negated_comparisons(%i: tensor<i32>, %j: tensor<i32>, %x: tensor<f32>, %y: tensor<f32>) -> (tensor<i1>, tensor<i1>) {
  %0 = "hlo.compare"(%i, %j) {direction = "LT", type = "SIGNED"} : (tensor<i32>, tensor<i32>) -> tensor<i1>
  %1 = "hlo.not"(%0) : (tensor<i1>) -> tensor<i1>
  %2 = "hlo.compare"(%x, %y) {direction = "LT", type = "FLOAT"} : (tensor<f32>, tensor<f32>) -> tensor<i1>
  %3 = "hlo.not"(%2) : (tensor<i1>) -> tensor<i1>
  return %1, %3 : tensor<i1>, tensor<i1>
}

// CHECK-LABEL: func.func @broadcasts
// CHECK-SAME: (%[[X:.*]]: tensor<3xf32>)
// CHECK-NEXT: %[[B:.*]] = "hlo.broadcast_in_dim"(%[[X]]) {dimensions = array<i64: 1>} : (tensor<3xf32>) -> tensor<2x3x4xf32>
// CHECK-NEXT: %[[R:.*]] = "hlo.reshape"(%[[X]]) : (tensor<3xf32>) -> tensor<1x3xf32>
// CHECK-NEXT: return %[[B]], %[[R]]
func.func @broadcasts(%x: tensor<3xf32>) -> (tensor<2x3x4xf32>, tensor<1x3xf32>) {
  %0 = "hlo.broadcast_in_dim"(%x) {dimensions = array<i64: 0>} : (tensor<3xf32>) -> tensor<3x1xf32>
  %1 = "hlo.broadcast_in_dim"(%0) {dimensions = array<i64: 1, 2>} : (tensor<3x1xf32>) -> tensor<2x3x4xf32>
  %2 = "hlo.broadcast_in_dim"(%x) {dimensions = array<i64: 1>} : (tensor<3xf32>) -> tensor<1x3xf32>
  return %1, %2 : tensor<2x3x4xf32>, tensor<1x3xf32>
}

// CHECK-LABEL: func.func @moved_scalars
// CHECK-SAME: (%[[X:.*]]: tensor<f32>)
// CHECK-NEXT: %[[B:.*]] = "hlo.broadcast_in_dim"(%[[X]]) {dimensions = array<i64>} : (tensor<f32>) -> tensor<6xf32>
// CHECK-NEXT: return %[[B]]
func.func @moved_scalars(%x: tensor<f32>) -> tensor<6xf32> {
  %0 = "hlo.broadcast_in_dim"(%x) {dimensions = array<i64>} : (tensor<f32>) -> tensor<2x3xf32>
  %1 = "hlo.transpose"(%0) {permutation = array<i64: 1, 0>} : (tensor<2x3xf32>) -> tensor<3x2xf32>
  %2 = "hlo.reverse"(%1) {dimensions = array<i64: 0>} : (tensor<3x2xf32>) -> tensor<3x2xf32>
  %3 = "hlo.reshape"(%2) : (tensor<3x2xf32>) -> tensor<6xf32>
  return %3 : tensor<6xf32>
}

// CHECK-LABEL: func.func @slices
// CHECK-SAME: (%[[X:.*]]: tensor<10xf32>, %[[Y:.*]]: tensor<10xf32>)
// CHECK-NEXT: %[[A:.*]] = "hlo.slice"(%[[X]]) {limit_indices = array<i64: 8>, start_indices = array<i64: 3>, strides = array<i64: 4>}
// CHECK-NEXT: %[[B:.*]] = "hlo.slice"(%[[Y]]) {limit_indices = array<i64: 5>, start_indices = array<i64: 2>, strides = array<i64: 1>}
// CHECK-NEXT: return %[[A]], %[[B]], %[[X]]
func.func @slices(%x: tensor<10xf32>, %y: tensor<10xf32>) -> (tensor<2xf32>, tensor<3xf32>, tensor<10xf32>) {
  %0 = "hlo.slice"(%x) {start_indices = array<i64: 1>, limit_indices = array<i64: 10>, strides = array<i64: 2>} : (tensor<10xf32>) -> tensor<5xf32>
  %1 = "hlo.slice"(%0) {start_indices = array<i64: 1>, limit_indices = array<i64: 5>, strides = array<i64: 2>} : (tensor<5xf32>) -> tensor<2xf32>
  %2 = "hlov.concatenate"(%x, %y) {dimension = 0 : i64} : (tensor<10xf32>, tensor<10xf32>) -> tensor<20xf32>
  %3 = "hlo.slice"(%2) {start_indices = array<i64: 12>, limit_indices = array<i64: 15>, strides = array<i64: 1>} : (tensor<20xf32>) -> tensor<3xf32>
  %4 = "hlo.slice"(%x) {start_indices = array<i64: 0>, limit_indices = array<i64: 10>, strides = array<i64: 1>} : (tensor<10xf32>) -> tensor<10xf32>
  return %1, %3, %4 : tensor<2xf32>, tensor<3xf32>, tensor<10xf32>
}

// A start index out of range is clamped.
// CHECK-LABEL: func.func @known_start
// CHECK: "hlo.slice"(%{{.*}}) {limit_indices = array<i64: 10>, start_indices = array<i64: 7>, strides = array<i64: 1>}
func.func @known_start(%x: tensor<10xf32>) -> tensor<3xf32> {
  %i = "hlo.constant"() {value = dense<99> : tensor<i32>} : () -> tensor<i32>
  %0 = "hlo.dynamic_slice"(%x, %i) {slice_sizes = array<i64: 3>} : (tensor<10xf32>, tensor<i32>) -> tensor<3xf32>
  return %0 : tensor<3xf32>
}

// CHECK-LABEL: func.func @concatenations
// CHECK-SAME: (%[[X:.*]]: tensor<2xf32>, %[[E:.*]]: tensor<0xf32>)
// CHECK-NEXT: %[[C:.*]] = "hlov.concatenate"(%[[X]], %[[X]], %[[X]])
// CHECK-NEXT: return %[[C]], %[[X]]
func.func @concatenations(%x: tensor<2xf32>, %e: tensor<0xf32>) -> (tensor<6xf32>, tensor<2xf32>) {
  %0 = "hlov.concatenate"(%x, %x) {dimension = 0 : i64} : (tensor<2xf32>, tensor<2xf32>) -> tensor<4xf32>
  %1 = "hlov.concatenate"(%0, %x) {dimension = 0 : i64} : (tensor<4xf32>, tensor<2xf32>) -> tensor<6xf32>
  %2 = "hlov.concatenate"(%e, %x) {dimension = 0 : i64} : (tensor<0xf32>, tensor<2xf32>) -> tensor<2xf32>
  return %1, %2 : tensor<6xf32>, tensor<2xf32>
}

// CHECK-LABEL: func.func @unit_transpose
// CHECK: "hlo.reshape"(%{{.*}}) : (tensor<1x5x3xf32>) -> tensor<5x1x3xf32>
func.func @unit_transpose(%x: tensor<1x5x3xf32>) -> tensor<5x1x3xf32> {
  %0 = "hlo.transpose"(%x) {permutation = array<i64: 1, 0, 2>} : (tensor<1x5x3xf32>) -> tensor<5x1x3xf32>
  return %0 : tensor<5x1x3xf32>
}

// CHECK-LABEL: func.func @dot_absorbs_transposes
// CHECK-SAME: (%[[X:.*]]: tensor<8x4xf32>, %[[Y:.*]]: tensor<6x8xf32>)
// CHECK-NEXT: %[[D:.*]] = "hlo.dot_general"(%[[Y]], %[[X]])
// CHECK-SAME: lhs_contracting_dimensions = array<i64: 1>
// CHECK-SAME: precision = "HIGHEST,DEFAULT"
// CHECK-SAME: rhs_contracting_dimensions = array<i64: 0>
// CHECK-SAME: -> tensor<6x4xf32>
// CHECK-NEXT: return %[[D]]
func.func @dot_absorbs_transposes(%x: tensor<8x4xf32>, %y: tensor<6x8xf32>) -> tensor<6x4xf32> {
  %0 = "hlo.transpose"(%x) {permutation = array<i64: 1, 0>} : (tensor<8x4xf32>) -> tensor<4x8xf32>
  %1 = "hlo.transpose"(%y) {permutation = array<i64: 1, 0>} : (tensor<6x8xf32>) -> tensor<8x6xf32>
  %2 = "hlo.dot_general"(%0, %1) {lhs_batching_dimensions = array<i64>, rhs_batching_dimensions = array<i64>, lhs_contracting_dimensions = array<i64: 1>, rhs_contracting_dimensions = array<i64: 0>, precision = "DEFAULT,HIGHEST"} : (tensor<4x8xf32>, tensor<8x6xf32>) -> tensor<4x6xf32>
  %3 = "hlo.transpose"(%2) {permutation = array<i64: 1, 0>} : (tensor<4x6xf32>) -> tensor<6x4xf32>
  return %3 : tensor<6x4xf32>
}

// Attention: the head dimension, minor in the result, comes from the left operand.
// CHECK-LABEL: func.func @dot_keeps_the_minor_dimension
// CHECK-SAME: (%[[V:.*]]: tensor<2x5x3x7xf32>, %[[P:.*]]: tensor<2x3x4x5xf32>)
// CHECK-NEXT: %[[D:.*]] = "hlo.dot_general"(%[[P]], %[[V]])
// CHECK-SAME: -> tensor<2x3x4x7xf32>
// CHECK-NEXT: "hlo.transpose"(%[[D]]) {permutation = array<i64: 0, 2, 1, 3>}
func.func @dot_keeps_the_minor_dimension(%v: tensor<2x5x3x7xf32>, %p: tensor<2x3x4x5xf32>) -> tensor<2x4x3x7xf32> {
  %0 = "hlo.dot_general"(%v, %p) {lhs_batching_dimensions = array<i64: 0, 2>, rhs_batching_dimensions = array<i64: 0, 1>, lhs_contracting_dimensions = array<i64: 1>, rhs_contracting_dimensions = array<i64: 3>} : (tensor<2x5x3x7xf32>, tensor<2x3x4x5xf32>) -> tensor<2x3x7x4xf32>
  %1 = "hlo.transpose"(%0) {permutation = array<i64: 0, 3, 1, 2>} : (tensor<2x3x7x4xf32>) -> tensor<2x4x3x7xf32>
  return %1 : tensor<2x4x3x7xf32>
}

// CHECK-LABEL: func.func @dot_keeps_the_order_of_free_dimensions
// CHECK: "hlo.transpose"
// CHECK: "hlo.dot_general"
func.func @dot_keeps_the_order_of_free_dimensions(%x: tensor<2x3x8xf32>, %y: tensor<8xf32>) -> tensor<3x2xf32> {
  %0 = "hlo.transpose"(%x) {permutation = array<i64: 1, 0, 2>} : (tensor<2x3x8xf32>) -> tensor<3x2x8xf32>
  %1 = "hlo.dot_general"(%0, %y) {lhs_batching_dimensions = array<i64>, rhs_batching_dimensions = array<i64>, lhs_contracting_dimensions = array<i64: 2>, rhs_contracting_dimensions = array<i64: 0>} : (tensor<3x2x8xf32>, tensor<8xf32>) -> tensor<3x2xf32>
  return %1 : tensor<3x2xf32>
}

// CHECK-LABEL: func.func @negated_product
// CHECK: %[[C:.*]] = "hlo.constant"() {value = dense<-3.000000e+00> : tensor<f32>}
// CHECK: "hlo.multiply"(%{{.*}}, %[[C]])
// CHECK-NOT: hlo.negate
// CHECK: return
func.func @negated_product(%x: tensor<f32>) -> tensor<f32> {
  %c = "hlo.constant"() {value = dense<3.0> : tensor<f32>} : () -> tensor<f32>
  %0 = "hlo.multiply"(%c, %x) : (tensor<f32>, tensor<f32>) -> tensor<f32>
  %1 = "hlo.negate"(%0) : (tensor<f32>) -> tensor<f32>
  return %1 : tensor<f32>
}

// CHECK-LABEL: func.func @moved_iotas
// CHECK-DAG: %[[A:.*]] = "hlo.iota"() {dimension = 1 : i64} : () -> tensor<3x5xi32>
// CHECK-DAG: %[[B:.*]] = "hlo.iota"() {dimension = 0 : i64} : () -> tensor<5xi32>
// CHECK-DAG: %[[C:.*]] = "hlo.iota"() {dimension = 1 : i64} : () -> tensor<1x5xi32>
// CHECK: return %[[A]], %[[B]], %[[C]]
func.func @moved_iotas() -> (tensor<3x5xi32>, tensor<5xi32>, tensor<1x5xi32>) {
  %0 = "hlo.iota"() {dimension = 0 : i64} : () -> tensor<5x1xi32>
  %1 = "hlo.broadcast_in_dim"(%0) {dimensions = array<i64: 1, 0>} : (tensor<5x1xi32>) -> tensor<3x5xi32>
  %2 = "hlo.reshape"(%0) : (tensor<5x1xi32>) -> tensor<5xi32>
  %3 = "hlo.transpose"(%0) {permutation = array<i64: 1, 0>} : (tensor<5x1xi32>) -> tensor<1x5xi32>
  return %1, %2, %3 : tensor<3x5xi32>, tensor<5xi32>, tensor<1x5xi32>
}

// CHECK-LABEL: func.func @reductions_of_one_element
// CHECK-SAME: (%[[X:.*]]: tensor<1x4xf32>, %[[Y:.*]]: tensor<4x1xf32>)
// CHECK: %[[A:.*]] = "hlo.reshape"(%[[X]]) : (tensor<1x4xf32>) -> tensor<4xf32>
// CHECK: %[[B:.*]] = "hlo.reshape"(%[[Y]]) : (tensor<4x1xf32>) -> tensor<4xf32>
// CHECK: %[[R:.*]] = "hlov.reduce"(%[[B]], %{{.*}}) {dimensions = array<i64: 0>, to_apply = @sum}
// CHECK: return %[[A]], %[[R]]
func.func @reductions_of_one_element(%x: tensor<1x4xf32>, %y: tensor<4x1xf32>) -> (tensor<4xf32>, tensor<f32>) {
  %z = "hlo.constant"() {value = dense<0.0> : tensor<f32>} : () -> tensor<f32>
  %0 = "hlov.reduce"(%x, %z) {dimensions = array<i64: 0>, to_apply = @sum} : (tensor<1x4xf32>, tensor<f32>) -> tensor<4xf32>
  %1 = "hlov.reduce"(%y, %z) {dimensions = array<i64: 0, 1>, to_apply = @sum} : (tensor<4x1xf32>, tensor<f32>) -> tensor<f32>
  return %0, %1 : tensor<4xf32>, tensor<f32>
}

// CHECK-LABEL: func.func @no_identity_no_change
// CHECK: "hlov.reduce"
func.func @no_identity_no_change(%x: tensor<1x4xf32>) -> tensor<4xf32> {
  %five = "hlo.constant"() {value = dense<5.0> : tensor<f32>} : () -> tensor<f32>
  %0 = "hlov.reduce"(%x, %five) {dimensions = array<i64: 0>, to_apply = @sum} : (tensor<1x4xf32>, tensor<f32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// CHECK-LABEL: func.func @reduction_of_reduction
// CHECK-COUNT-1: "hlov.reduce"(%{{.*}}) {dimensions = array<i64: 0, 1, 3>, to_apply = @sum} : (tensor<2x3x4x5xf32>, tensor<f32>) -> tensor<4xf32>
// CHECK-NOT: hlov.reduce
// CHECK: return
func.func @reduction_of_reduction(%x: tensor<2x3x4x5xf32>) -> tensor<4xf32> {
  %z = "hlo.constant"() {value = dense<0.0> : tensor<f32>} : () -> tensor<f32>
  %0 = "hlov.reduce"(%x, %z) {dimensions = array<i64: 1>, to_apply = @sum} : (tensor<2x3x4x5xf32>, tensor<f32>) -> tensor<2x4x5xf32>
  %1 = "hlov.reduce"(%0, %z) {dimensions = array<i64: 0, 2>, to_apply = @sum} : (tensor<2x4x5xf32>, tensor<f32>) -> tensor<4xf32>
  return %1 : tensor<4xf32>
}

func.func private @sum(%a: tensor<f32>, %b: tensor<f32>) -> tensor<f32> {
  %0 = "hlo.add"(%a, %b) : (tensor<f32>, tensor<f32>) -> tensor<f32>
  return %0 : tensor<f32>
}

// CHECK-LABEL: func.func @barriers
// CHECK: "hlov.optimization_barrier"
// BARRIER-LABEL: func.func @barriers
// BARRIER-SAME: (%[[X:.*]]: tensor<f32>)
// BARRIER-NEXT: return %[[X]]
func.func @barriers(%x: tensor<f32>) -> tensor<f32> {
  %0 = "hlov.optimization_barrier"(%x) : (tensor<f32>) -> tensor<f32>
  return %0 : tensor<f32>
}
