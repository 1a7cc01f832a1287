// RUN: %gristmill-opt %s --split-input-file --verify-diagnostics --pass-pipeline=verify-hlo

// Nothing is wrong here, so this part must verify.
func.func @valid(%x: tensor<2x3xf32>) -> tensor<3x2xf32> {
  %0 = "hlo.transpose"(%x) {permutation = array<i64: 1, 0>} : (tensor<2x3xf32>) -> tensor<3x2xf32>
  return %0 : tensor<3x2xf32>
}

// -----

// Every violation is reported, with its place.
// expected-error {{2 violations}}
// expected-error {{16:8: hlo.negate}}
// expected-error {{17:8: hlo.sine}}
func.func @two_violations(%x: tensor<2xf32>) -> tensor<2xi32> {
  %0 = "hlo.negate"(%x) : (tensor<2xf32>) -> tensor<3xf32>
  %1 = "hlo.sine"(%0) : (tensor<3xf32>) -> tensor<2xi32>
  return %1 : tensor<2xi32>
}

// -----

// expected-error {{hlov.sum: the dialect has no such operation}}
func.func @main(%x: tensor<f32>) -> tensor<f32> {
  %0 = "hlov.sum"(%x) : (tensor<f32>) -> tensor<f32>
  return %0 : tensor<f32>
}

// -----

// expected-error {{hlov.add: the dialect has no such operation (it is spelled hlo.add)}}
func.func @main(%x: tensor<f32>) -> tensor<f32> {
  %0 = "hlov.add"(%x, %x) : (tensor<f32>, tensor<f32>) -> tensor<f32>
  return %0 : tensor<f32>
}

// -----

// expected-error {{hlov.sort: attribute 'is_stable' is missing}}
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "hlov.sort"(%x) {comparator = @less, dimension = 0 : i64} : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
func.func private @less(%a: tensor<f32>, %b: tensor<f32>) -> tensor<i1> {
  %0 = "hlo.compare"(%a, %b) {direction = "LT", type = "FLOAT"} : (tensor<f32>, tensor<f32>) -> tensor<i1>
  return %0 : tensor<i1>
}

// -----

// expected-error {{hlo.add: operand 1 must have the result's type tensor<2xf32>, got tensor<3xf32>}}
func.func @main(%x: tensor<2xf32>, %y: tensor<3xf32>) -> tensor<2xf32> {
  %0 = "hlo.add"(%x, %y) : (tensor<2xf32>, tensor<3xf32>) -> tensor<2xf32>
  return %0 : tensor<2xf32>
}

// -----

// expected-error {{hlo.sine: operand 0 must be float or complex, got tensor<i32>}}
func.func @main(%x: tensor<i32>) -> tensor<i32> {
  %0 = "hlo.sine"(%x) : (tensor<i32>) -> tensor<i32>
  return %0 : tensor<i32>
}

// -----

// expected-error {{hlo.shift_left: operand 0 must be integer, got tensor<f32>}}
func.func @main(%x: tensor<f32>) -> tensor<f32> {
  %0 = "hlo.shift_left"(%x, %x) : (tensor<f32>, tensor<f32>) -> tensor<f32>
  return %0 : tensor<f32>
}

// -----

// expected-error {{hlo.convert: result must have shape [2], got tensor<3xf32>}}
func.func @main(%x: tensor<2xi32>) -> tensor<3xf32> {
  %0 = "hlo.convert"(%x) : (tensor<2xi32>) -> tensor<3xf32>
  return %0 : tensor<3xf32>
}

// -----

// expected-error {{hlo.add: tensor<?xf32> is not a statically shaped tensor type}}
func.func @main(%x: tensor<?xf32>) -> tensor<?xf32> {
  %0 = "hlo.add"(%x, %x) : (tensor<?xf32>, tensor<?xf32>) -> tensor<?xf32>
  return %0 : tensor<?xf32>
}

// -----

// expected-error {{'direction' must be one of EQ, NE, GE, GT, LE, LT, got 'LESS'}}
func.func @main(%x: tensor<f32>) -> tensor<i1> {
  %0 = "hlo.compare"(%x, %x) {direction = "LESS", type = "FLOAT"} : (tensor<f32>, tensor<f32>) -> tensor<i1>
  return %0 : tensor<i1>
}

// -----

// expected-error {{'type' must be one of SIGNED, got 'FLOAT'}}
func.func @main(%x: tensor<i32>) -> tensor<i1> {
  %0 = "hlo.compare"(%x, %x) {direction = "LT", type = "FLOAT"} : (tensor<i32>, tensor<i32>) -> tensor<i1>
  return %0 : tensor<i1>
}

// -----

// expected-error {{operand 0 must be a scalar or have shape [2], got tensor<3xi1>}}
func.func @main(%p: tensor<3xi1>, %x: tensor<2xf32>) -> tensor<2xf32> {
  %0 = "hlo.select"(%p, %x, %x) : (tensor<3xi1>, tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
  return %0 : tensor<2xf32>
}

// -----

// expected-error {{operand 0 must have element type i32, got tensor<f32>}}
func.func @main(%p: tensor<f32>, %x: tensor<2xi32>) -> tensor<2xi32> {
  %0 = "hlo.clamp"(%p, %x, %x) : (tensor<f32>, tensor<2xi32>, tensor<2xi32>) -> tensor<2xi32>
  return %0 : tensor<2xi32>
}

// -----

// expected-error {{hlo.constant: result must be tensor<2xf32>, got tensor<3xf32>}}
func.func @main() -> tensor<3xf32> {
  %0 = "hlo.constant"() {value = dense<1.0> : tensor<2xf32>} : () -> tensor<3xf32>
  return %0 : tensor<3xf32>
}

// -----

// expected-error {{'dimension' has dimension 1, out of range [0, 1)}}
func.func @main() -> tensor<4xi32> {
  %0 = "hlo.iota"() {dimension = 1 : i64} : () -> tensor<4xi32>
  return %0 : tensor<4xi32>
}

// -----

// expected-error {{operand dimension 0 of size 3 cannot become result dimension 1 of size 4}}
func.func @main(%x: tensor<3xf32>) -> tensor<3x4xf32> {
  %0 = "hlo.broadcast_in_dim"(%x) {dimensions = array<i64: 1>} : (tensor<3xf32>) -> tensor<3x4xf32>
  return %0 : tensor<3x4xf32>
}

// -----

// expected-error {{'dimensions' has a dimension twice: [0, 0]}}
func.func @main(%x: tensor<3x3xf32>) -> tensor<3x3xf32> {
  %0 = "hlo.broadcast_in_dim"(%x) {dimensions = array<i64: 0, 0>} : (tensor<3x3xf32>) -> tensor<3x3xf32>
  return %0 : tensor<3x3xf32>
}

// -----

// expected-error {{attribute 'dimensions' must be array<i64: …>, got array<i32: 0>}}
func.func @main(%x: tensor<3xf32>) -> tensor<3xf32> {
  %0 = "hlo.broadcast_in_dim"(%x) {dimensions = array<i32: 0>} : (tensor<3xf32>) -> tensor<3xf32>
  return %0 : tensor<3xf32>
}

// -----

// expected-error {{the result must have the operand's 6 elements, got tensor<5xf32>}}
func.func @main(%x: tensor<2x3xf32>) -> tensor<5xf32> {
  %0 = "hlo.reshape"(%x) : (tensor<2x3xf32>) -> tensor<5xf32>
  return %0 : tensor<5xf32>
}

// -----

// expected-error {{result must be tensor<3x2xf32>, got tensor<2x3xf32>}}
func.func @main(%x: tensor<2x3xf32>) -> tensor<2x3xf32> {
  %0 = "hlo.transpose"(%x) {permutation = array<i64: 1, 0>} : (tensor<2x3xf32>) -> tensor<2x3xf32>
  return %0 : tensor<2x3xf32>
}

// -----

// expected-error {{dimension 0 needs 0 <= start <= limit <= 3, got start 1, limit 4}}
func.func @main(%x: tensor<3xf32>) -> tensor<3xf32> {
  %0 = "hlo.slice"(%x) {start_indices = array<i64: 1>, limit_indices = array<i64: 4>, strides = array<i64: 1>} : (tensor<3xf32>) -> tensor<3xf32>
  return %0 : tensor<3xf32>
}

// -----

// expected-error {{'dimensions' has dimension 2, out of range [0, 1)}}
func.func @main(%x: tensor<3xf32>) -> tensor<3xf32> {
  %0 = "hlo.reverse"(%x) {dimensions = array<i64: 2>} : (tensor<3xf32>) -> tensor<3xf32>
  return %0 : tensor<3xf32>
}

// -----

// expected-error {{result must be tensor<6xf32>, got tensor<5xf32>}}
func.func @main(%x: tensor<3xf32>, %v: tensor<f32>) -> tensor<5xf32> {
  %0 = "hlo.pad"(%x, %v) {low = array<i64: 1>, high = array<i64: 0>, interior = array<i64: 1>} : (tensor<3xf32>, tensor<f32>) -> tensor<5xf32>
  return %0 : tensor<5xf32>
}

// -----

// expected-error {{operand 1 may differ from operand 0 (tensor<2x3xf32>) in dimension 0 alone, got tensor<2x4xf32>}}
func.func @main(%x: tensor<2x3xf32>, %y: tensor<2x4xf32>) -> tensor<4x3xf32> {
  %0 = "hlov.concatenate"(%x, %y) {dimension = 0 : i64} : (tensor<2x3xf32>, tensor<2x4xf32>) -> tensor<4x3xf32>
  return %0 : tensor<4x3xf32>
}

// -----

// expected-error {{expects 2 start indices, got 1}}
func.func @main(%x: tensor<2x3xf32>, %i: tensor<i32>) -> tensor<1x1xf32> {
  %0 = "hlo.dynamic_slice"(%x, %i) {slice_sizes = array<i64: 1, 1>} : (tensor<2x3xf32>, tensor<i32>) -> tensor<1x1xf32>
  return %0 : tensor<1x1xf32>
}

// -----

// expected-error {{operand 1 must fit into tensor<2xf32>, got tensor<3xf32>}}
func.func @main(%x: tensor<2xf32>, %u: tensor<3xf32>, %i: tensor<i32>) -> tensor<2xf32> {
  %0 = "hlo.dynamic_update_slice"(%x, %u, %i) : (tensor<2xf32>, tensor<3xf32>, tensor<i32>) -> tensor<2xf32>
  return %0 : tensor<2xf32>
}

// -----

// expected-error {{'slice_sizes' must be 1 in collapsed and batching dimensions, got [2, 3]}}
func.func @main(%x: tensor<5x3xf32>, %i: tensor<4x1xi32>) -> tensor<4x3xf32> {
  %0 = "hlo.gather"(%x, %i) {offset_dims = array<i64: 1>, collapsed_slice_dims = array<i64: 0>, operand_batching_dims = array<i64>, start_indices_batching_dims = array<i64>, start_index_map = array<i64: 0>, index_vector_dim = 1 : i64, slice_sizes = array<i64: 2, 3>, indices_are_sorted = false} : (tensor<5x3xf32>, tensor<4x1xi32>) -> tensor<4x3xf32>
  return %0 : tensor<4x3xf32>
}

// -----

// expected-error {{result must have shape [4, 3], got tensor<3x4xf32>}}
func.func @main(%x: tensor<5x3xf32>, %i: tensor<4x1xi32>) -> tensor<3x4xf32> {
  %0 = "hlo.gather"(%x, %i) {offset_dims = array<i64: 1>, collapsed_slice_dims = array<i64: 0>, operand_batching_dims = array<i64>, start_indices_batching_dims = array<i64>, start_index_map = array<i64: 0>, index_vector_dim = 1 : i64, slice_sizes = array<i64: 1, 3>, indices_are_sorted = false} : (tensor<5x3xf32>, tensor<4x1xi32>) -> tensor<3x4xf32>
  return %0 : tensor<3x4xf32>
}

// -----

// expected-error {{the updates' dimensions outside the window must be [4], got [3]}}
func.func @main(%x: tensor<5x3xf32>, %i: tensor<4x1xi32>, %u: tensor<3x3xf32>) -> tensor<5x3xf32> {
  %0 = "hlov.scatter"(%x, %i, %u) {to_apply = @sum, update_window_dims = array<i64: 1>, inserted_window_dims = array<i64: 0>, input_batching_dims = array<i64>, scatter_indices_batching_dims = array<i64>, scatter_dims_to_operand_dims = array<i64: 0>, index_vector_dim = 1 : i64, indices_are_sorted = false, unique_indices = false} : (tensor<5x3xf32>, tensor<4x1xi32>, tensor<3x3xf32>) -> tensor<5x3xf32>
  return %0 : tensor<5x3xf32>
}
func.func private @sum(%a: tensor<f32>, %b: tensor<f32>) -> tensor<f32> {
  %0 = "hlo.add"(%a, %b) : (tensor<f32>, tensor<f32>) -> tensor<f32>
  return %0 : tensor<f32>
}

// -----

// expected-error {{function @absent is not defined in the module}}
func.func @main(%x: tensor<4xf32>, %z: tensor<f32>) -> tensor<f32> {
  %0 = "hlov.reduce"(%x, %z) {dimensions = array<i64: 0>, to_apply = @absent} : (tensor<4xf32>, tensor<f32>) -> tensor<f32>
  return %0 : tensor<f32>
}

// -----

// expected-error {{function @sum must have parameters (tensor<i32>, tensor<i32>), got (tensor<f32>, tensor<f32>)}}
func.func @main(%x: tensor<4xi32>, %z: tensor<i32>) -> tensor<i32> {
  %0 = "hlov.reduce"(%x, %z) {dimensions = array<i64: 0>, to_apply = @sum} : (tensor<4xi32>, tensor<i32>) -> tensor<i32>
  return %0 : tensor<i32>
}
func.func private @sum(%a: tensor<f32>, %b: tensor<f32>) -> tensor<f32> {
  %0 = "hlo.add"(%a, %b) : (tensor<f32>, tensor<f32>) -> tensor<f32>
  return %0 : tensor<f32>
}

// -----

// expected-error {{result 0 must have shape [4], got tensor<3xf32>}}
func.func @main(%x: tensor<4x3xf32>, %z: tensor<f32>) -> tensor<3xf32> {
  %0 = "hlov.reduce"(%x, %z) {dimensions = array<i64: 1>, to_apply = @sum} : (tensor<4x3xf32>, tensor<f32>) -> tensor<3xf32>
  return %0 : tensor<3xf32>
}
func.func private @sum(%a: tensor<f32>, %b: tensor<f32>) -> tensor<f32> {
  %0 = "hlo.add"(%a, %b) : (tensor<f32>, tensor<f32>) -> tensor<f32>
  return %0 : tensor<f32>
}

// -----

// expected-error {{result 0 must have shape [3], got tensor<4xf32>}}
func.func @main(%x: tensor<5xf32>, %z: tensor<f32>) -> tensor<4xf32> {
  %0 = "hlov.reduce_window"(%x, %z) {to_apply = @sum, window_dimensions = array<i64: 2>, window_strides = array<i64: 2>, base_dilations = array<i64: 1>, window_dilations = array<i64: 1>, padding_low = array<i64: 1>, padding_high = array<i64: 0>} : (tensor<5xf32>, tensor<f32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
func.func private @sum(%a: tensor<f32>, %b: tensor<f32>) -> tensor<f32> {
  %0 = "hlo.add"(%a, %b) : (tensor<f32>, tensor<f32>) -> tensor<f32>
  return %0 : tensor<f32>
}

// -----

// expected-error {{operand 1 must be tensor<2xf32>, got tensor<3xf32>}}
func.func @main(%x: tensor<4xf32>, %s: tensor<3xf32>, %z: tensor<f32>) -> tensor<4xf32> {
  %0 = "hlo.select_and_scatter"(%x, %s, %z) {select = @less, scatter = @sum, window_dimensions = array<i64: 2>, window_strides = array<i64: 2>, padding_low = array<i64: 0>, padding_high = array<i64: 0>} : (tensor<4xf32>, tensor<3xf32>, tensor<f32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
func.func private @less(%a: tensor<f32>, %b: tensor<f32>) -> tensor<i1> {
  %0 = "hlo.compare"(%a, %b) {direction = "LT", type = "FLOAT"} : (tensor<f32>, tensor<f32>) -> tensor<i1>
  return %0 : tensor<i1>
}
func.func private @sum(%a: tensor<f32>, %b: tensor<f32>) -> tensor<f32> {
  %0 = "hlo.add"(%a, %b) : (tensor<f32>, tensor<f32>) -> tensor<f32>
  return %0 : tensor<f32>
}

// -----

// expected-error {{'num_inputs' must lie in [1, 1], got 2}}
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "hlov.map"(%x) {to_apply = @sum, num_inputs = 2 : i64} : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
func.func private @sum(%a: tensor<f32>, %b: tensor<f32>) -> tensor<f32> {
  %0 = "hlo.add"(%a, %b) : (tensor<f32>, tensor<f32>) -> tensor<f32>
  return %0 : tensor<f32>
}

// -----

// expected-error {{function @sum must have results (tensor<i1>), got (tensor<f32>)}}
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "hlov.sort"(%x) {comparator = @sum, dimension = 0 : i64, is_stable = true} : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
func.func private @sum(%a: tensor<f32>, %b: tensor<f32>) -> tensor<f32> {
  %0 = "hlo.add"(%a, %b) : (tensor<f32>, tensor<f32>) -> tensor<f32>
  return %0 : tensor<f32>
}

// -----

// expected-error {{contracting dimensions 1 of lhs and 0 of rhs have sizes 3 and 4}}
func.func @main(%x: tensor<2x3xf32>, %y: tensor<4x5xf32>) -> tensor<2x5xf32> {
  %0 = "hlo.dot_general"(%x, %y) {lhs_batching_dimensions = array<i64>, rhs_batching_dimensions = array<i64>, lhs_contracting_dimensions = array<i64: 1>, rhs_contracting_dimensions = array<i64: 0>} : (tensor<2x3xf32>, tensor<4x5xf32>) -> tensor<2x5xf32>
  return %0 : tensor<2x5xf32>
}

// -----

// expected-error {{result must have shape [2, 5], got tensor<5x2xf32>}}
func.func @main(%x: tensor<2x3xf32>, %y: tensor<3x5xf32>) -> tensor<5x2xf32> {
  %0 = "hlo.dot_general"(%x, %y) {lhs_batching_dimensions = array<i64>, rhs_batching_dimensions = array<i64>, lhs_contracting_dimensions = array<i64: 1>, rhs_contracting_dimensions = array<i64: 0>} : (tensor<2x3xf32>, tensor<3x5xf32>) -> tensor<5x2xf32>
  return %0 : tensor<5x2xf32>
}

// -----

// expected-error {{result must have shape [1, 3, 6], got tensor<1x4x6xf32>}}
func.func @main(%x: tensor<1x5x2xf32>, %k: tensor<3x2x6xf32>) -> tensor<1x4x6xf32> {
  %0 = "hlo.convolution"(%x, %k) {window_strides = array<i64: 1>, padding_low = array<i64: 0>, padding_high = array<i64: 0>, lhs_dilation = array<i64: 1>, rhs_dilation = array<i64: 1>, window_reversal = array<i64: 0>, input_batch_dimension = 0 : i64, input_feature_dimension = 2 : i64, input_spatial_dimensions = array<i64: 1>, kernel_input_feature_dimension = 1 : i64, kernel_output_feature_dimension = 2 : i64, kernel_spatial_dimensions = array<i64: 0>, output_batch_dimension = 0 : i64, output_feature_dimension = 2 : i64, output_spatial_dimensions = array<i64: 1>, feature_group_count = 1 : i64, batch_group_count = 1 : i64} : (tensor<1x5x2xf32>, tensor<3x2x6xf32>) -> tensor<1x4x6xf32>
  return %0 : tensor<1x4x6xf32>
}

// -----

// expected-error {{operand 0 must be a batch of square matrices, got tensor<2x3xf32>}}
func.func @main(%x: tensor<2x3xf32>) -> tensor<2x3xf32> {
  %0 = "hlo.cholesky"(%x) {lower = true} : (tensor<2x3xf32>) -> tensor<2x3xf32>
  return %0 : tensor<2x3xf32>
}

// -----

// expected-error {{'transpose_a' must be one of NO_TRANSPOSE, TRANSPOSE, ADJOINT, got 'YES'}}
func.func @main(%x: tensor<2x2xf32>) -> tensor<2x2xf32> {
  %0 = "hlo.triangular_solve"(%x, %x) {left_side = true, lower = true, unit_diagonal = false, transpose_a = "YES"} : (tensor<2x2xf32>, tensor<2x2xf32>) -> tensor<2x2xf32>
  return %0 : tensor<2x2xf32>
}

// -----

// expected-error {{result must have shape [5], got tensor<8xcomplex<f32>>}}
func.func @main(%x: tensor<8xf32>) -> tensor<8xcomplex<f32>> {
  %0 = "hlo.fft"(%x) {fft_type = "RFFT", fft_length = array<i64: 8>} : (tensor<8xf32>) -> tensor<8xcomplex<f32>>
  return %0 : tensor<8xcomplex<f32>>
}

// -----

// expected-error {{hlov.while: results must have the operands' types}}
func.func @main(%x: tensor<f32>) -> tensor<i32> {
  %0 = "hlov.while"(%x) {cond = @less, body = @sum} : (tensor<f32>) -> tensor<i32>
  return %0 : tensor<i32>
}
func.func private @less(%a: tensor<f32>, %b: tensor<f32>) -> tensor<i1> {
  %0 = "hlo.compare"(%a, %b) {direction = "LT", type = "FLOAT"} : (tensor<f32>, tensor<f32>) -> tensor<i1>
  return %0 : tensor<i1>
}
func.func private @sum(%a: tensor<f32>, %b: tensor<f32>) -> tensor<f32> {
  %0 = "hlo.add"(%a, %b) : (tensor<f32>, tensor<f32>) -> tensor<f32>
  return %0 : tensor<f32>
}

// -----

// expected-error {{function @sum must have parameters (tensor<f32>), got (tensor<f32>, tensor<f32>)}}
func.func @main(%p: tensor<i1>, %x: tensor<f32>) -> tensor<f32> {
  %0 = "hlov.if"(%p, %x) {branches = [@sum, @sum]} : (tensor<i1>, tensor<f32>) -> tensor<f32>
  return %0 : tensor<f32>
}
func.func private @sum(%a: tensor<f32>, %b: tensor<f32>) -> tensor<f32> {
  %0 = "hlo.add"(%a, %b) : (tensor<f32>, tensor<f32>) -> tensor<f32>
  return %0 : tensor<f32>
}

// -----

// expected-error {{'branches' must name 2 functions, got 1}}
func.func @main(%p: tensor<i1>, %x: tensor<f32>) -> tensor<f32> {
  %0 = "hlov.if"(%p, %x, %x) {branches = [@sum]} : (tensor<i1>, tensor<f32>, tensor<f32>) -> tensor<f32>
  return %0 : tensor<f32>
}
func.func private @sum(%a: tensor<f32>, %b: tensor<f32>) -> tensor<f32> {
  %0 = "hlo.add"(%a, %b) : (tensor<f32>, tensor<f32>) -> tensor<f32>
  return %0 : tensor<f32>
}

// -----

// expected-error {{operand 0 must have element type i32, got tensor<i1>}}
func.func @main(%p: tensor<i1>, %x: tensor<f32>) -> tensor<f32> {
  %0 = "hlov.case"(%p, %x, %x) {branches = [@sum]} : (tensor<i1>, tensor<f32>, tensor<f32>) -> tensor<f32>
  return %0 : tensor<f32>
}
func.func private @sum(%a: tensor<f32>, %b: tensor<f32>) -> tensor<f32> {
  %0 = "hlo.add"(%a, %b) : (tensor<f32>, tensor<f32>) -> tensor<f32>
  return %0 : tensor<f32>
}

// -----

// expected-error {{function @sum must have parameters (tensor<f32>), got (tensor<f32>, tensor<f32>)}}
func.func @main(%x: tensor<f32>) -> tensor<f32> {
  %0 = "hlov.fusion"(%x) {calls = @sum, kind = "loop"} : (tensor<f32>) -> tensor<f32>
  return %0 : tensor<f32>
}
func.func private @sum(%a: tensor<f32>, %b: tensor<f32>) -> tensor<f32> {
  %0 = "hlo.add"(%a, %b) : (tensor<f32>, tensor<f32>) -> tensor<f32>
  return %0 : tensor<f32>
}
