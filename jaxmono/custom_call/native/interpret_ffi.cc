// The XLA FFI handler "jaxmono_interpret": runs a generated kernel in the SIMT interpreter.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "buffers.h"
#include "emulator.h"
#include "xla/ffi/api/ffi.h"

namespace jaxmono {
namespace {

namespace ffi = xla::ffi;

struct State {
  static ffi::TypeId id;
  static const ffi::TypeInfo info;

  Emulator emulator;
  int32_t blocks = 1;
  uint64_t seed = 0;
  size_t buffers = 0;
};

ffi::TypeId State::id = {};
const ffi::TypeInfo State::info = ffi::MakeTypeInfo<State>();

ffi::ErrorOr<std::unique_ptr<State>> Instantiate(ffi::Span<const uint8_t> binary,
                                                 std::string_view name, int32_t blocks,
                                                 int64_t seed, int32_t buffers) {
  auto state = std::make_unique<State>();
  state->blocks = blocks;
  state->seed = static_cast<uint64_t>(seed);
  state->buffers = static_cast<size_t>(buffers);
  std::string error = state->emulator.Load(binary.begin(), binary.size(), std::string(name));
  if (!error.empty()) return ffi::Unexpected(ffi::Error::Internal(std::move(error)));
  return state;
}

ffi::Error Execute(State* state, ffi::RemainingArgs args, ffi::RemainingRets rets) {
  std::vector<void*> buffers;
  std::string error = CollectBuffers(args, rets, &buffers);
  if (error.empty() && buffers.size() != state->buffers) {
    error = "a jaxmono kernel takes " + std::to_string(state->buffers) +
            " buffers, and the call has " + std::to_string(buffers.size());
  }
  if (error.empty()) error = state->emulator.Run(buffers.data(), state->blocks, state->seed);
  return error.empty() ? ffi::Error::Success() : ffi::Error::Internal(std::move(error));
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(jaxmono_interpret_instantiate, Instantiate,
                              ffi::Ffi::BindInstantiate()
                                  .Attr<ffi::Span<const uint8_t>>("binary")
                                  .Attr<std::string_view>("name")
                                  .Attr<int32_t>("blocks")
                                  .Attr<int64_t>("seed")
                                  .Attr<int32_t>("buffers"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    jaxmono_interpret_execute, Execute,
    ffi::Ffi::Bind().Ctx<ffi::State<State>>().RemainingArgs().RemainingRets());

extern "C" XLA_FFI_TypeId* jaxmono_interpret_type_id() { return &State::id; }
extern "C" const XLA_FFI_TypeInfo* jaxmono_interpret_type_info() { return &State::info; }

// Loads a shared object and unloads it again; returns 0, or 1 with the reason in `error`.
extern "C" int jaxmono_interpret_probe(const uint8_t* binary, int64_t bytes, const char* name,
                                       char* error, int error_bytes) {
  Emulator emulator;
  std::string message = emulator.Load(binary, static_cast<size_t>(bytes), name);
  if (message.empty()) return 0;
  CopyMessage(message, error, error_bytes);
  return 1;
}

}  // namespace jaxmono
