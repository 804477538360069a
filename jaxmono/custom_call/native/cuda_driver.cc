#include "cuda_driver.h"

#include <dlfcn.h>

namespace jaxmono::cuda {
namespace {

struct Loaded {
  Driver driver{};
  std::string why;
};

template <typename Pointer>
void Resolve(void* library, const char* name, Pointer* pointer, std::string* missing) {
  *pointer = reinterpret_cast<Pointer>(dlsym(library, name));
  if (*pointer == nullptr && missing != nullptr && missing->empty()) *missing = name;
}

Loaded* Load() {
  auto* loaded = new Loaded();  // never freed: states may outlive static destructors
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* reason = dlerror();
    loaded->why = std::string("the CUDA driver could not be loaded (") +
                  (reason != nullptr ? reason : "unknown reason") +
                  "); install the NVIDIA driver or put libcuda.so.1 on the library path";
    return loaded;
  }
  Driver& d = loaded->driver;
  std::string missing;
#define JAXMONO_RESOLVE(name) Resolve(library, #name, &d.name, &missing)
  JAXMONO_RESOLVE(cuInit);
  JAXMONO_RESOLVE(cuGetErrorName);
  JAXMONO_RESOLVE(cuGetErrorString);
  JAXMONO_RESOLVE(cuDeviceGet);
  JAXMONO_RESOLVE(cuDeviceGetAttribute);
  JAXMONO_RESOLVE(cuDevicePrimaryCtxRetain);
  JAXMONO_RESOLVE(cuDevicePrimaryCtxRelease_v2);
  JAXMONO_RESOLVE(cuCtxGetCurrent);
  JAXMONO_RESOLVE(cuCtxPushCurrent_v2);
  JAXMONO_RESOLVE(cuCtxPopCurrent_v2);
  JAXMONO_RESOLVE(cuCtxGetDevice);
  JAXMONO_RESOLVE(cuStreamGetCtx);
  JAXMONO_RESOLVE(cuThreadExchangeStreamCaptureMode);
  JAXMONO_RESOLVE(cuModuleLoadData);
  JAXMONO_RESOLVE(cuModuleUnload);
  JAXMONO_RESOLVE(cuModuleGetFunction);
  JAXMONO_RESOLVE(cuFuncSetAttribute);
  JAXMONO_RESOLVE(cuOccupancyMaxActiveBlocksPerMultiprocessor);
  JAXMONO_RESOLVE(cuLaunchKernelEx);
#undef JAXMONO_RESOLVE
  Resolve(library, "cuFuncLoad", &d.cuFuncLoad, nullptr);
  if (!missing.empty()) {
    loaded->why = "libcuda.so.1 has no " + missing + "; update the NVIDIA driver to CUDA 12 or later";
    return loaded;
  }
  if (Result error = d.cuInit(0); error != kSuccess) {
    loaded->why = "cuInit failed: " + d.Describe(error) + "; is a GPU visible (nvidia-smi)?";
  }
  return loaded;
}

}  // namespace

const Driver* Driver::Get(std::string* why) {
  static Loaded* loaded = Load();
  if (!loaded->why.empty()) {
    *why = loaded->why;
    return nullptr;
  }
  return &loaded->driver;
}

std::string Driver::Describe(Result error) const {
  const char* name = nullptr;
  const char* text = nullptr;
  if (cuGetErrorName(error, &name) != kSuccess || name == nullptr) {
    return "CUDA error " + std::to_string(error);
  }
  if (cuGetErrorString(error, &text) != kSuccess || text == nullptr) return name;
  return std::string(name) + " (" + text + ")";
}

}  // namespace jaxmono::cuda
