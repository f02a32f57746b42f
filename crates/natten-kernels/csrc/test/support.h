// What the tests of the host side share: a made-up CUDA runtime, claims that print when they fail, and
// what every args struct is made of. Included once per program.
#pragma once

#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "natten_kernels.h"

// ---- the runtime ------------------------------------------------------------------------------

namespace {

struct Runtime {
  int ordinal = 0;  // a new one per case: attributes are cached per device
  int major = 9, minor = 0, shared_memory = 232448;
  cudaError_t last = cudaSuccess;
  std::string calls;        // in order, a word each
  std::string failing;      // the call that fails
  cudaError_t error = cudaErrorInvalidValue;
} runtime;

cudaError_t called(const char* name) {
  runtime.calls += std::string(runtime.calls.empty() ? "" : " ") + name;
  if (runtime.failing == name) {
    runtime.last = runtime.error;
    return runtime.error;
  }
  return cudaSuccess;
}

int failures = 0;
std::string context;

void claim(bool holds, const std::string& what) {
  if (!holds) {
    ++failures;
    printf("FAILED %s: %s\n", context.c_str(), what.c_str());
  }
}

void equal(const std::string& got, const std::string& want) { claim(got == want, "got `" + got + "`, want `" + want + "`"); }

void answers(int32_t status, int32_t want, const char* message) {
  const std::string got = status == NATTEN_OK ? "" : natten_last_error();
  claim(status == want, "status " + std::to_string(status) + ", want " + std::to_string(want) + ": " + got);
  claim(got.find(message) != std::string::npos, "message `" + got + "` has no `" + message + "`");
}

}  // namespace

cudaError_t cudaGetDevice(int* device) {
  *device = runtime.ordinal;
  return runtime.failing == "device" ? cudaErrorInsufficientDriver : cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  *value = attribute == cudaDevAttrComputeCapabilityMajor   ? runtime.major
           : attribute == cudaDevAttrComputeCapabilityMinor ? runtime.minor
                                                            : runtime.shared_memory;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  strcpy(properties->name, "Paper GPU");
  return cudaSuccess;
}
cudaError_t cudaGetLastError() {
  const cudaError_t last = runtime.last;
  runtime.last = cudaSuccess;
  return last;
}
cudaError_t cudaPeekAtLastError() { return runtime.last; }
const char* cudaGetErrorName(cudaError_t error) { return error == cudaErrorIllegalAddress ? "cudaErrorIllegalAddress" : "cudaErrorOther"; }
const char* cudaGetErrorString(cudaError_t error) { return error == cudaErrorIllegalAddress ? "illegal address" : "another error"; }
cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) { return called("attribute"); }
cudaError_t cudaLaunchKernel(const void* function, dim3, dim3, void**, size_t, cudaStream_t) {
  return called(static_cast<const char*>(function));
}
cudaError_t cudaMallocAsync(void** pointer, size_t, cudaStream_t) {
  const cudaError_t error = called("malloc");
  *pointer = error == cudaSuccess ? malloc(1) : nullptr;
  return error;
}
cudaError_t cudaMemsetAsync(void*, int, size_t, cudaStream_t) { return called("memset"); }
cudaError_t cudaFreeAsync(void* pointer, cudaStream_t) {
  free(pointer);
  return called("free");
}

namespace {

alignas(64) char memory[256];
void* const P = memory;
float* const F = reinterpret_cast<float*>(memory);

template <class Args>
Args sized() {
  Args args{};
  args.size = sizeof(Args);
  return args;
}

}  // namespace
