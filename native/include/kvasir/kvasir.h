// Kvasir: compressed KV caches for large language models. The whole public interface.
//
// types.h            sides, element types and numbers that the others share
// config.h           what a cache is: geometry, codecs, budget
// attend.h           one call of attention, and merging results
// cache.h            sequences, append, attend, inspection, stats
// estimate.h         what sequences would take
// saving.h           sequences as bytes, and back
// codec.h            the table of codecs
// backend.h          where kernels run; threads
// calibrate.h        sensitivities and key scaling, from recorded tensors
// kmeans.h           k-means on its own, for analysis
// matrix.h           dense products, for models that run beside a cache
// commvq.h           codebooks of CommVQ: encoding and decoding
// commvq_training.h  and how they are trained
// rope.h             rotary position embedding: frequencies, scalings, rotation
// error.h            the one exception type
#pragma once

#include "kvasir/attend.h"
#include "kvasir/backend.h"
#include "kvasir/cache.h"
#include "kvasir/calibrate.h"
#include "kvasir/codec.h"
#include "kvasir/commvq.h"
#include "kvasir/commvq_training.h"
#include "kvasir/config.h"
#include "kvasir/error.h"
#include "kvasir/estimate.h"
#include "kvasir/held_call.h"
#include "kvasir/kmeans.h"
#include "kvasir/matrix.h"
#include "kvasir/model.h"
#include "kvasir/rope.h"
#include "kvasir/saving.h"
#include "kvasir/types.h"
