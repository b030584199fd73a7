// A side of CommVQ: codebooks in device memory, the searches that seal by them, and rows.
#pragma once

#include "engine/cuda/families/family.h"
#include "kernels/cuda/commvq/seal.h"

namespace kvasir::cuda {

class CommVqKeys : public CanonicalSide {
 public:
  explicit CommVqKeys(const DeviceLayer& layer);
  void seal(const StagedPages& staged, const NewPages& pages) const override;
  void read_rows(const PageRun& run, float* out) const override;

  const commvq::KeyModel& model() const { return model_; }

 private:
  const DeviceLayer& layer_;
  const commvq::KeyModel& model_;
  const DeviceScratch tables_;
  DeviceScratch cross_;
  KeySearch search_;
};

class CommVqValues : public CanonicalSide {
 public:
  explicit CommVqValues(const DeviceLayer& layer);
  void seal(const StagedPages& staged, const NewPages& pages) const override;
  void read_rows(const PageRun& run, float* out) const override;

  const commvq::ValueModel& model() const { return model_; }
  // As the model has them.
  const uint16_t* tables() const { return tables_.as<uint16_t>(); }

 private:
  void upload_network(const commvq::ValueNetwork& network);

  const DeviceLayer& layer_;
  const commvq::ValueModel& model_;
  const DeviceScratch tables_, thresholds_;
  DeviceScratch gram_, network_;
  ValueSearch search_ = {};
};

}  // namespace kvasir::cuda
