// RUN: %gristmill-opt %s --split-input-file --verify-diagnostics --pass-pipeline=inline-calls

// expected-error {{function @even calls itself: even -> odd -> even; recursion cannot be compiled}}
func.func @even(%x: tensor<f32>) -> tensor<f32> {
  %0 = func.call @odd(%x) : (tensor<f32>) -> tensor<f32>
  return %0 : tensor<f32>
}
func.func private @odd(%x: tensor<f32>) -> tensor<f32> {
  %0 = func.call @even(%x) : (tensor<f32>) -> tensor<f32>
  return %0 : tensor<f32>
}

// -----

// expected-error {{function @outside is not defined}}
func.func @main(%x: tensor<f32>) -> tensor<f32> {
  %0 = func.call @outside(%x) : (tensor<f32>) -> tensor<f32>
  return %0 : tensor<f32>
}
func.func private @outside(%x: tensor<f32>) -> tensor<f32>
