// The part of the CUDA driver API that jaxmono calls, declared by hand and loaded with dlopen, so
// that neither building nor importing needs a CUDA toolkit. Values and layouts are those of cuda.h
// (they are ABI; tests/custom_call/check_cuda_abi.cc compares them where a toolkit is installed).

#ifndef JAXMONO_CUDA_DRIVER_H_
#define JAXMONO_CUDA_DRIVER_H_

#include <cstddef>
#include <string>

namespace jaxmono::cuda {

using Result = int;
using Device = int;
using Context = struct CUctx_st*;
using Module = struct CUmod_st*;
using Function = struct CUfunc_st*;
using Stream = struct CUstream_st*;

inline constexpr Result kSuccess = 0;
inline constexpr Result kNoBinaryForGpu = 209;

inline constexpr int kDeviceMultiprocessorCount = 16;
inline constexpr int kDeviceCooperativeLaunch = 95;
inline constexpr int kFuncMaxDynamicSharedBytes = 8;
inline constexpr int kCaptureModeRelaxed = 2;

// CUlaunchAttribute: an id, padding to 8 bytes, and a union of 64 bytes.
struct LaunchAttribute {
  int id;
  char pad[4];
  union {
    char raw[64];
    int cooperative;
    int programmatic_serialization;
  } value;
};
inline constexpr int kLaunchCooperative = 2;
inline constexpr int kLaunchProgrammaticSerialization = 6;

// CUlaunchConfig.
struct LaunchConfig {
  unsigned grid_x, grid_y, grid_z;
  unsigned block_x, block_y, block_z;
  unsigned shared_bytes;
  Stream stream;
  LaunchAttribute* attributes;
  unsigned attribute_count;
};

// The driver's entry points. Names are those of the API; a `_v2` is what cuda.h maps a name to.
struct Driver {
  Result (*cuInit)(unsigned flags);
  Result (*cuGetErrorName)(Result error, const char** text);
  Result (*cuGetErrorString)(Result error, const char** text);
  Result (*cuDeviceGet)(Device* device, int ordinal);
  Result (*cuDeviceGetAttribute)(int* value, int attribute, Device device);
  Result (*cuDevicePrimaryCtxRetain)(Context* context, Device device);
  Result (*cuDevicePrimaryCtxRelease_v2)(Device device);
  Result (*cuCtxGetCurrent)(Context* context);
  Result (*cuCtxPushCurrent_v2)(Context context);
  Result (*cuCtxPopCurrent_v2)(Context* context);
  Result (*cuCtxGetDevice)(Device* device);
  Result (*cuStreamGetCtx)(Stream stream, Context* context);
  Result (*cuThreadExchangeStreamCaptureMode)(int* mode);
  Result (*cuModuleLoadData)(Module* module, const void* image);
  Result (*cuModuleUnload)(Module module);
  Result (*cuModuleGetFunction)(Function* function, Module module, const char* name);
  Result (*cuFuncSetAttribute)(Function function, int attribute, int value);
  Result (*cuOccupancyMaxActiveBlocksPerMultiprocessor)(int* blocks, Function function,
                                                        int threads, size_t shared_bytes);
  Result (*cuLaunchKernelEx)(const LaunchConfig* config, Function function, void** parameters,
                             void** extra);
  Result (*cuFuncLoad)(Function function);  // null before CUDA 12.4

  // The loaded driver; null, with the reason in *why, where there is none. Loaded once.
  static const Driver* Get(std::string* why);

  // "CUDA_ERROR_INVALID_VALUE (invalid argument)".
  std::string Describe(Result error) const;
};

}  // namespace jaxmono::cuda

#endif  // JAXMONO_CUDA_DRIVER_H_
