#include "cuda_kernel.h"

#include <algorithm>
#include <utility>

namespace jaxmono::cuda {
namespace {

// Makes a context current for a scope, and lets calls pass that stream capture would refuse
// (loading a module while XLA records a command buffer on this thread).
class Scope {
 public:
  Scope(const Driver* driver, Context context) : driver_(driver) {
    entered_ = driver_->cuCtxPushCurrent_v2(context);
    exchanged_ = driver_->cuThreadExchangeStreamCaptureMode(&mode_) == kSuccess;
  }
  ~Scope() {
    if (exchanged_) driver_->cuThreadExchangeStreamCaptureMode(&mode_);
    Context popped = nullptr;
    if (entered_ == kSuccess) driver_->cuCtxPopCurrent_v2(&popped);
  }
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

  Result entered() const { return entered_; }

 private:
  const Driver* driver_;
  Result entered_;
  int mode_ = kCaptureModeRelaxed;
  bool exchanged_ = false;
};

}  // namespace

Kernel::Kernel(KernelConfig config, std::vector<uint8_t> cubin)
    : config_(std::move(config)), cubin_(std::move(cubin)) {
  driver_ = Driver::Get(&no_driver_);
}

Kernel::~Kernel() {
  for (Instance& instance : instances_) Unload(&instance);
}

std::string Kernel::Message(const std::string& text) const {
  return "jaxmono kernel " + config_.name + ": " + text;
}

std::string Kernel::Failed(const char* call, Result error) const {
  return Message(std::string(call) + " failed: " + driver_->Describe(error));
}

std::string Kernel::ContextOf(Stream stream, Context* context) const {
  Result error = driver_->cuStreamGetCtx(stream, context);
  if (error == kSuccess && *context != nullptr) return "";
  Result second = driver_->cuCtxGetCurrent(context);
  if (second == kSuccess && *context != nullptr) return "";
  return error != kSuccess ? Failed("cuStreamGetCtx", error)
                           : Message("the stream has no CUDA context");
}

std::string Kernel::Find(Context context, Instance* found) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (const Instance& instance : instances_) {
    if (instance.context == context) {
      *found = instance;
      return "";
    }
  }
  Instance made;
  if (std::string error = Load(context, &made); !error.empty()) {
    Unload(&made);
    return error;
  }
  instances_.push_back(made);
  *found = made;
  return "";
}

std::string Kernel::Load(Context context, Instance* instance) const {
  instance->context = context;
  Scope scope(driver_, context);
  if (scope.entered() != kSuccess) return Failed("cuCtxPushCurrent", scope.entered());
  return LoadInto(instance);
}

// With instance->context current.
std::string Kernel::LoadInto(Instance* instance) const {
  const Driver& d = *driver_;
  if (Result e = d.cuCtxGetDevice(&instance->device)) return Failed("cuCtxGetDevice", e);

  // XLA runs in the primary context; holding it keeps unloading valid however late it happens.
  Context primary = nullptr;
  if (Result e = d.cuDevicePrimaryCtxRetain(&primary, instance->device)) {
    return Failed("cuDevicePrimaryCtxRetain", e);
  }
  if (primary == instance->context) {
    instance->retained = true;
  } else {
    d.cuDevicePrimaryCtxRelease_v2(instance->device);
  }

  if (Result e = d.cuModuleLoadData(&instance->module, cubin_.data())) {
    instance->module = nullptr;
    if (e == kNoBinaryForGpu) {
      return Message("it was compiled for " + config_.arch + ", which device " +
                     std::to_string(instance->device) +
                     " cannot run; lower and compile the program on this device");
    }
    return Failed("cuModuleLoadData", e);
  }
  if (Result e = d.cuModuleGetFunction(&instance->function, instance->module,
                                       config_.name.c_str())) {
    return Failed("cuModuleGetFunction", e);
  }
  // Lazy loading would otherwise load the code at the first launch, possibly inside a capture.
  if (d.cuFuncLoad != nullptr) {
    if (Result e = d.cuFuncLoad(instance->function)) return Failed("cuFuncLoad", e);
  }
  if (config_.shared_bytes > 0) {
    if (Result e = d.cuFuncSetAttribute(instance->function, kFuncMaxDynamicSharedBytes,
                                        config_.shared_bytes)) {
      return Failed("cuFuncSetAttribute", e) + "; it asks for " +
             std::to_string(config_.shared_bytes) + " bytes of shared memory per block";
    }
  }
  return Occupancy(instance);
}

std::string Kernel::Occupancy(Instance* instance) const {
  const Driver& d = *driver_;
  Residency& r = instance->residency;
  if (Result e = d.cuDeviceGetAttribute(&r.multiprocessors, kDeviceMultiprocessorCount,
                                        instance->device)) {
    return Failed("cuDeviceGetAttribute", e);
  }
  if (config_.cooperative) {
    int supported = 0;
    if (Result e = d.cuDeviceGetAttribute(&supported, kDeviceCooperativeLaunch,
                                          instance->device)) {
      return Failed("cuDeviceGetAttribute", e);
    }
    if (supported == 0) {
      return Message("it has grid barriers, and device " + std::to_string(instance->device) +
                     " has no cooperative launch; run it with XLA on this device");
    }
  }
  if (Result e = d.cuOccupancyMaxActiveBlocksPerMultiprocessor(
          &r.blocks_per_multiprocessor, instance->function, config_.threads,
          static_cast<size_t>(config_.shared_bytes))) {
    return Failed("cuOccupancyMaxActiveBlocksPerMultiprocessor", e);
  }
  const int fit = r.blocks_per_multiprocessor;
  r.grid = std::min(std::min(fit, config_.blocks_per_sm) * r.multiprocessors, config_.max_blocks);
  if (fit > 0 && config_.blocks_per_sm == 0) r.grid = config_.max_blocks;
  if (r.grid < 1) {
    return Message("not one block of " + std::to_string(config_.threads) + " threads and " +
                   std::to_string(config_.shared_bytes) + " bytes of shared memory fits on device " +
                   std::to_string(instance->device) +
                   "; lower and compile the program on this device");
  }
  return "";
}

void Kernel::Unload(Instance* instance) const {
  // Errors are of no use here: at process exit the driver may be gone already.
  if (instance->module != nullptr) {
    Scope scope(driver_, instance->context);
    if (scope.entered() == kSuccess) driver_->cuModuleUnload(instance->module);
    instance->module = nullptr;
  }
  if (instance->retained) {
    driver_->cuDevicePrimaryCtxRelease_v2(instance->device);
    instance->retained = false;
  }
}

std::string Kernel::Prepare(Stream stream) {
  if (driver_ == nullptr) return Message(no_driver_);
  Context context = nullptr;
  if (std::string error = ContextOf(stream, &context); !error.empty()) return error;
  Instance found;
  return Find(context, &found);
}

std::string Kernel::PrepareDevice(int ordinal, Residency* residency) {
  if (driver_ == nullptr) return Message(no_driver_);
  Device device = 0;
  Context primary = nullptr;
  if (Result e = driver_->cuDeviceGet(&device, ordinal)) return Failed("cuDeviceGet", e);
  if (Result e = driver_->cuDevicePrimaryCtxRetain(&primary, device)) {
    return Failed("cuDevicePrimaryCtxRetain", e);
  }
  Instance found;
  std::string error = Find(primary, &found);
  driver_->cuDevicePrimaryCtxRelease_v2(device);
  *residency = found.residency;
  return error;
}

std::string Kernel::Launch(Stream stream, void* const* buffers, int count) {
  if (driver_ == nullptr) return Message(no_driver_);
  if (count != config_.buffers) {
    return Message("it takes " + std::to_string(config_.buffers) + " buffers, and the call has " +
                   std::to_string(count));
  }
  Context context = nullptr;
  if (std::string error = ContextOf(stream, &context); !error.empty()) return error;
  Instance instance;
  if (std::string error = Find(context, &instance); !error.empty()) return error;

  LaunchAttribute attribute{};
  if (config_.cooperative) {
    attribute.id = kLaunchCooperative;
    attribute.value.cooperative = 1;
  } else if (config_.overlaps) {
    // Its blocks may be there before the kernel in front has ended, and wait for that themselves.
    attribute.id = kLaunchProgrammaticSerialization;
    attribute.value.programmatic_serialization = 1;
  }

  LaunchConfig launch{};
  launch.grid_x = static_cast<unsigned>(instance.residency.grid);
  launch.grid_y = launch.grid_z = 1;
  launch.block_x = static_cast<unsigned>(config_.threads);
  launch.block_y = launch.block_z = 1;
  launch.shared_bytes = static_cast<unsigned>(config_.shared_bytes);
  launch.stream = stream;
  launch.attributes = &attribute;
  launch.attribute_count = attribute.id != 0 ? 1u : 0u;

  // The kernel's one parameter is struct Params { void* buf[N]; } by value, so the address of the
  // pointers is the address of the parameter; the driver copies it during the call.
  void* parameters[] = {const_cast<void*>(static_cast<const void*>(buffers))};
  if (Result e = driver_->cuLaunchKernelEx(&launch, instance.function, parameters, nullptr)) {
    return Failed("cuLaunchKernelEx", e) + "; grid " + std::to_string(launch.grid_x) +
           ", block " + std::to_string(launch.block_x) + ", shared memory " +
           std::to_string(launch.shared_bytes) + " bytes" +
           (config_.cooperative ? ", cooperative" : config_.overlaps ? ", overlapping" : "");
  }
  return "";
}

}  // namespace jaxmono::cuda
