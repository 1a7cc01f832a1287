// RUN: %gristmill bench %s --seconds 0.02 --threads 2 --json %t.json --chart %t.svg | filecheck %s
// RUN: filecheck %s --check-prefix=JSON --input-file %t.json
// RUN: filecheck %s --check-prefix=SVG --input-file %t.svg
// RUN: %gristmill compile %s -o %t.gmill
// RUN: %gristmill bench %t.gmill --seconds 0.02 --compare %s | filecheck %s --check-prefix=ARTIFACT
// RUN: not %gristmill bench %s --chart roof.png 2>&1 | filecheck %s --check-prefix=SUFFIX

// CHECK: bench.mlir
// CHECK: ready in
// CHECK: 2 threads
// CHECK: bound
// CHECK: memory {{.*}}inputs 2 MiB, outputs 1 MiB
// CHECK: GFLOP/s of f32 multiply-adds
// CHECK: kernel {{.*}}launches
// CHECK: _dot {{.*}}dot_general
// CHECK: copies and control
// JSON: "threads": 2
// JSON: "name": "kernel_{{.*}}_dot"
// JSON: "flops": 134217728
// SVG: <svg xmlns="http://www.w3.org/2000/svg"
// SVG: multiply-adds {{[0-9]+}} GFLOP/s
// SVG: <circle
// ARTIFACT: An artifact holds no kernel table
// ARTIFACT: beside bench.mlir: {{.*}}results differ by at most 0.0e+00
// SUFFIX: gristmill: cannot draw roof.png: the name must end in .svg
func.func @main(%x: tensor<512x256xf32>, %w: tensor<256x512xf32>, %b: tensor<512x512xf32>) -> tensor<512x512xf32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
    : (tensor<512x256xf32>, tensor<256x512xf32>) -> tensor<512x512xf32>
  %1 = stablehlo.add %0, %b : tensor<512x512xf32>
  return %1 : tensor<512x512xf32>
}
