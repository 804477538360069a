// The XLA FFI handler "jaxmono_cuda": launches a generated kernel on XLA's stream.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "buffers.h"
#include "cuda_kernel.h"
#include "xla/ffi/api/ffi.h"

namespace jaxmono::cuda {
namespace {

namespace ffi = xla::ffi;

struct State {
  static ffi::TypeId id;
  static const ffi::TypeInfo info;

  State(KernelConfig config, std::vector<uint8_t> cubin)
      : kernel(std::move(config), std::move(cubin)) {}

  Kernel kernel;
};

ffi::TypeId State::id = {};
const ffi::TypeInfo State::info = ffi::MakeTypeInfo<State>();

ffi::Error ToError(std::string message) {
  return message.empty() ? ffi::Error::Success() : ffi::Error::Internal(std::move(message));
}

ffi::ErrorOr<std::unique_ptr<State>> Instantiate(ffi::Span<const uint8_t> binary,
                                                 std::string_view name, std::string_view arch,
                                                 int32_t threads, int32_t blocks_per_sm,
                                                 int32_t max_blocks, int32_t shared_bytes,
                                                 int32_t buffers, bool cooperative,
                                                 bool overlaps) {
  KernelConfig config;
  config.name = std::string(name);
  config.arch = std::string(arch);
  config.threads = threads;
  config.blocks_per_sm = blocks_per_sm;
  config.max_blocks = max_blocks;
  config.shared_bytes = shared_bytes;
  config.buffers = buffers;
  config.cooperative = cooperative;
  config.overlaps = overlaps;
  return std::make_unique<State>(std::move(config),
                                 std::vector<uint8_t>(binary.begin(), binary.end()));
}

// XLA calls this before the first execution on a device, outside of any command buffer.
ffi::Error Initialize(State* state, Stream stream) { return ToError(state->kernel.Prepare(stream)); }

ffi::Error Execute(State* state, Stream stream, ffi::RemainingArgs args, ffi::RemainingRets rets) {
  std::vector<void*> buffers;
  if (std::string error = CollectBuffers(args, rets, &buffers); !error.empty()) {
    return ToError(std::move(error));
  }
  return ToError(state->kernel.Launch(stream, buffers.data(), static_cast<int>(buffers.size())));
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(jaxmono_cuda_instantiate, Instantiate,
                              ffi::Ffi::BindInstantiate()
                                  .Attr<ffi::Span<const uint8_t>>("binary")
                                  .Attr<std::string_view>("name")
                                  .Attr<std::string_view>("arch")
                                  .Attr<int32_t>("threads")
                                  .Attr<int32_t>("blocks_per_sm")
                                  .Attr<int32_t>("max_blocks")
                                  .Attr<int32_t>("shared_bytes")
                                  .Attr<int32_t>("buffers")
                                  .Attr<bool>("cooperative")
                                  .Attr<bool>("overlaps"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    jaxmono_cuda_initialize, Initialize,
    ffi::Ffi::BindInitialize().Ctx<ffi::State<State>>().Ctx<ffi::PlatformStream<Stream>>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(jaxmono_cuda_execute, Execute,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::State<State>>()
                                  .Ctx<ffi::PlatformStream<Stream>>()
                                  .RemainingArgs()
                                  .RemainingRets(),
                              {ffi::Traits::kCmdBufferCompatible});

extern "C" XLA_FFI_TypeId* jaxmono_cuda_type_id() { return &State::id; }
extern "C" const XLA_FFI_TypeInfo* jaxmono_cuda_type_info() { return &State::info; }

// Loads a cubin on a device and unloads it again, so that a kernel that cannot run is found while
// XLA can still take its place. Writes multiprocessors, resident blocks per multiprocessor and
// grid into `residency`; returns 0, or 1 with the reason in `error`.
extern "C" int jaxmono_cuda_probe(const uint8_t* cubin, int64_t cubin_bytes, const char* name,
                                  const char* arch, int threads, int blocks_per_sm, int max_blocks,
                                  int shared_bytes, int cooperative, int ordinal, int* residency,
                                  char* error, int error_bytes) {
  KernelConfig config;
  config.name = name;
  config.arch = arch;
  config.threads = threads;
  config.blocks_per_sm = blocks_per_sm;
  config.max_blocks = max_blocks;
  config.shared_bytes = shared_bytes;
  config.cooperative = cooperative != 0;
  Kernel kernel(std::move(config), std::vector<uint8_t>(cubin, cubin + cubin_bytes));
  Residency found;
  std::string message = kernel.PrepareDevice(ordinal, &found);
  if (!message.empty()) {
    CopyMessage(message, error, error_bytes);
    return 1;
  }
  residency[0] = found.multiprocessors;
  residency[1] = found.blocks_per_multiprocessor;
  residency[2] = found.grid;
  return 0;
}

}  // namespace jaxmono::cuda
