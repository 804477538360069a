// One kernel of one call site: its cubin, and one loaded module per CUDA context.

#ifndef JAXMONO_CUDA_KERNEL_H_
#define JAXMONO_CUDA_KERNEL_H_

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "cuda_driver.h"

namespace jaxmono::cuda {

// Launch configuration; the fields are those of jaxmono.codegen.program.Program.
struct KernelConfig {
  std::string name;
  std::string arch;
  int threads = 0;
  int blocks_per_sm = 0;  // 0: as many as there are tasks, max_blocks
  int max_blocks = 0;
  int shared_bytes = 0;
  int buffers = 0;
  bool cooperative = false;
  bool overlaps = false;  // not with cooperative
};

// What loading found out about the device.
struct Residency {
  int multiprocessors = 0;
  int blocks_per_multiprocessor = 0;  // that fit at once, by the driver's occupancy
  int grid = 0;                       // blocks that a launch uses
};

// All methods return an empty string on success, else a message that names the kernel.
// Thread-safe. The barrier state inside a module therefore belongs to one call site and device.
class Kernel {
 public:
  Kernel(KernelConfig config, std::vector<uint8_t> cubin);
  ~Kernel();
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;

  // Loads the module into the stream's context unless it is there already.
  std::string Prepare(Stream stream);

  // Loads the module into the primary context of a device; tells how many blocks will run.
  std::string PrepareDevice(int ordinal, Residency* residency);

  // Launches on the stream with `count` buffer pointers, in the order of the kernel's Params.
  std::string Launch(Stream stream, void* const* buffers, int count);

 private:
  struct Instance {
    Context context = nullptr;
    Device device = 0;
    bool retained = false;  // we hold a reference to the primary context
    Module module = nullptr;
    Function function = nullptr;
    Residency residency;
  };

  std::string ContextOf(Stream stream, Context* context) const;
  std::string Find(Context context, Instance* found);
  std::string Load(Context context, Instance* instance) const;
  std::string LoadInto(Instance* instance) const;
  std::string Occupancy(Instance* instance) const;
  void Unload(Instance* instance) const;
  std::string Failed(const char* call, Result error) const;
  std::string Message(const std::string& text) const;

  const KernelConfig config_;
  const std::vector<uint8_t> cubin_;
  const Driver* driver_ = nullptr;
  std::string no_driver_;
  std::mutex mutex_;
  std::vector<Instance> instances_;
};

}  // namespace jaxmono::cuda

#endif  // JAXMONO_CUDA_KERNEL_H_
