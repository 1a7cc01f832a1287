// RUN: %gristmill-opt %s --pass-pipeline=canonicalize-hlo | filecheck %s

// Products of complex and narrow numbers become products of the types that the dot emitter computes with.

// CHECK-LABEL: func.func @complex_product
// CHECK-DAG: %[[LR:.*]] = "hlo.real"(%arg0)
// CHECK-DAG: %[[LI:.*]] = "hlo.imag"(%arg0)
// CHECK-DAG: %[[RR:.*]] = "hlo.real"(%arg1)
// CHECK-DAG: %[[RI:.*]] = "hlo.imag"(%arg1)
// CHECK-DAG: %[[A:.*]] = "hlo.dot_general"(%[[LR]], %[[RR]])
// CHECK-DAG: %[[B:.*]] = "hlo.dot_general"(%[[LI]], %[[RI]])
// CHECK-DAG: %[[C:.*]] = "hlo.dot_general"(%[[LR]], %[[RI]])
// CHECK-DAG: %[[D:.*]] = "hlo.dot_general"(%[[LI]], %[[RR]])
// CHECK-DAG: %[[RE:.*]] = "hlo.subtract"(%[[A]], %[[B]])
// CHECK-DAG: %[[IM:.*]] = "hlo.add"(%[[C]], %[[D]])
// CHECK: "hlo.complex"(%[[RE]], %[[IM]]) : (tensor<4x5xf32>, tensor<4x5xf32>) -> tensor<4x5xcomplex<f32>>
func.func @complex_product(%x: tensor<4x8xcomplex<f32>>, %y: tensor<8x5xcomplex<f32>>) -> tensor<4x5xcomplex<f32>> {
  %0 = "hlo.dot_general"(%x, %y) {lhs_batching_dimensions = array<i64>, rhs_batching_dimensions = array<i64>, lhs_contracting_dimensions = array<i64: 1>, rhs_contracting_dimensions = array<i64: 0>} : (tensor<4x8xcomplex<f32>>, tensor<8x5xcomplex<f32>>) -> tensor<4x5xcomplex<f32>>
  return %0 : tensor<4x5xcomplex<f32>>
}

// CHECK-LABEL: func.func @narrow_product
// CHECK-DAG: %[[L:.*]] = "hlo.convert"(%arg0) : (tensor<4x8xi4>) -> tensor<4x8xi8>
// CHECK-DAG: %[[R:.*]] = "hlo.convert"(%arg1) : (tensor<8x5xui4>) -> tensor<8x5xui8>
// CHECK: %[[P:.*]] = "hlo.dot_general"(%[[L]], %[[R]]) {{.*}} -> tensor<4x5xi32>
// CHECK: "hlo.convert"(%[[P]]) : (tensor<4x5xi32>) -> tensor<4x5xi4>
func.func @narrow_product(%x: tensor<4x8xi4>, %y: tensor<8x5xui4>) -> tensor<4x5xi4> {
  %0 = "hlo.dot_general"(%x, %y) {lhs_batching_dimensions = array<i64>, rhs_batching_dimensions = array<i64>, lhs_contracting_dimensions = array<i64: 1>, rhs_contracting_dimensions = array<i64: 0>} : (tensor<4x8xi4>, tensor<8x5xui4>) -> tensor<4x5xi4>
  return %0 : tensor<4x5xi4>
}

// CHECK-LABEL: func.func @float_product
// CHECK-COUNT-2: "hlo.convert"(%{{.*}}) : ({{.*}}f8E5M2>) -> {{.*}}xf32>
// CHECK: "hlo.dot_general"({{.*}}) {{.*}} -> tensor<4x5xf32>
// CHECK-NEXT: return
func.func @float_product(%x: tensor<4x8xf8E5M2>, %y: tensor<8x5xf8E5M2>) -> tensor<4x5xf32> {
  %0 = "hlo.dot_general"(%x, %y) {lhs_batching_dimensions = array<i64>, rhs_batching_dimensions = array<i64>, lhs_contracting_dimensions = array<i64: 1>, rhs_contracting_dimensions = array<i64: 0>} : (tensor<4x8xf8E5M2>, tensor<8x5xf8E5M2>) -> tensor<4x5xf32>
  return %0 : tensor<4x5xf32>
}
