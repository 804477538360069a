// Compiled (not run) where a CUDA toolkit is installed: compares the hand-written declarations of
// jaxmono/custom_call/native/cuda_driver.h with cuda.h.

#include <cuda.h>

#include <cstddef>
#include <type_traits>

#include "cuda_driver.h"

namespace ours = jaxmono::cuda;

static_assert(ours::kSuccess == CUDA_SUCCESS);
static_assert(ours::kNoBinaryForGpu == CUDA_ERROR_NO_BINARY_FOR_GPU);
static_assert(ours::kDeviceMultiprocessorCount == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
static_assert(ours::kDeviceCooperativeLaunch == CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH);
static_assert(ours::kFuncMaxDynamicSharedBytes == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
static_assert(ours::kCaptureModeRelaxed == CU_STREAM_CAPTURE_MODE_RELAXED);
static_assert(ours::kLaunchCooperative == CU_LAUNCH_ATTRIBUTE_COOPERATIVE);
static_assert(ours::kLaunchProgrammaticSerialization ==
              CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION);
static_assert(sizeof(CUresult) == sizeof(ours::Result) && sizeof(CUdevice) == sizeof(ours::Device));

static_assert(sizeof(ours::LaunchAttribute) == sizeof(CUlaunchAttribute));
static_assert(offsetof(ours::LaunchAttribute, value) == offsetof(CUlaunchAttribute, value));
static_assert(sizeof(ours::LaunchConfig) == sizeof(CUlaunchConfig));
static_assert(offsetof(ours::LaunchConfig, grid_x) == offsetof(CUlaunchConfig, gridDimX));
static_assert(offsetof(ours::LaunchConfig, block_x) == offsetof(CUlaunchConfig, blockDimX));
static_assert(offsetof(ours::LaunchConfig, shared_bytes) ==
              offsetof(CUlaunchConfig, sharedMemBytes));
static_assert(offsetof(ours::LaunchConfig, stream) == offsetof(CUlaunchConfig, hStream));
static_assert(offsetof(ours::LaunchConfig, attributes) == offsetof(CUlaunchConfig, attrs));
static_assert(offsetof(ours::LaunchConfig, attribute_count) == offsetof(CUlaunchConfig, numAttrs));

// Parameter by parameter: the same class and size (enums and structs have other names here).
template <typename A, typename B>
constexpr bool Like() {
  return sizeof(A) == sizeof(B) && std::is_pointer_v<A> == std::is_pointer_v<B>;
}
template <typename R1, typename... A, typename R2, typename... B>
constexpr bool SameShape(R1 (*)(A...), R2 (*)(B...)) {
  if constexpr (sizeof...(A) == sizeof...(B)) return Like<R1, R2>() && (Like<A, B>() && ...);
  return false;
}
#define CHECK(ours_name, api) \
  static_assert(SameShape(decltype(ours::Driver::ours_name)(nullptr), decltype (&api)(nullptr)))
CHECK(cuInit, cuInit);
CHECK(cuGetErrorName, cuGetErrorName);
CHECK(cuGetErrorString, cuGetErrorString);
CHECK(cuDeviceGet, cuDeviceGet);
CHECK(cuDeviceGetAttribute, cuDeviceGetAttribute);
CHECK(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain);
CHECK(cuDevicePrimaryCtxRelease_v2, cuDevicePrimaryCtxRelease);
CHECK(cuCtxGetCurrent, cuCtxGetCurrent);
CHECK(cuCtxPushCurrent_v2, cuCtxPushCurrent);
CHECK(cuCtxPopCurrent_v2, cuCtxPopCurrent);
CHECK(cuCtxGetDevice, cuCtxGetDevice);
CHECK(cuStreamGetCtx, cuStreamGetCtx);
CHECK(cuThreadExchangeStreamCaptureMode, cuThreadExchangeStreamCaptureMode);
CHECK(cuModuleLoadData, cuModuleLoadData);
CHECK(cuModuleUnload, cuModuleUnload);
CHECK(cuModuleGetFunction, cuModuleGetFunction);
CHECK(cuFuncSetAttribute, cuFuncSetAttribute);
CHECK(cuOccupancyMaxActiveBlocksPerMultiprocessor, cuOccupancyMaxActiveBlocksPerMultiprocessor);
CHECK(cuLaunchKernelEx, cuLaunchKernelEx);
CHECK(cuFuncLoad, cuFuncLoad);
