# EANet on PASCAL VOC: second phase of the paper's VOC test result, fine-tuning on trainval (2,913
# images) from the final checkpoint of ea_r101_voc_45k.py.
#
# The paper gives 15,000 iterations, but neither the learning rate nor the schedule, and the
# published code has no second phase. The rest comes from the segmentation code of HamNet
# (Gsunshine/Enjoy-Hamburger, same code base, shared author): a tenth of the first phase's rate,
# poly decay to zero over its own iterations, trained batch norm, and the final checkpoint instead
# of the best one.
_base_ = "./ea_r101_voc_45k.py"
max_iters = 15001  # iterations 0 to 15,000 inclusive, as in the first phase
load_from = "work_dirs/ea_r101_voc_45k/iter_45001.pth"
model = dict(backbone=dict(init_cfg=None))  # `load_from` holds every weight
optim_wrapper = dict(optimizer=dict(lr=9e-4))
param_scheduler = [
    dict(
        type="HeldPolyLR",
        interval=10,
        power=0.9,
        eta_min=0.0,
        begin=0,
        end=max_iters,
        by_epoch=False,
    )
]
train_cfg = dict(max_iters=max_iters)
train_dataloader = dict(
    dataset=dict(
        _delete_=True,
        type=_base_.dataset_type,
        data_root=_base_.data_root,
        data_prefix=dict(img_path="JPEGImages", seg_map_path="SegmentationClass"),
        ann_file="ImageSets/Segmentation/trainval.txt",
        pipeline=_base_.train_pipeline,
    )
)
# Training includes the validation images: their mIoU only shows that training works.
image_counts = dict(train=2913)
allow_overlap = True  # for `mmseg-ext check_dataset`
default_hooks = dict(checkpoint=dict(save_best=None))
# The VOC server scores the result: tools/test.py writes one PNG of labels per test image. The test
# images have no annotations to load.
test_pipeline = [step for step in _base_.test_pipeline if step["type"] != "CheckedLoadAnnotations"]
tta_pipeline = [
    _base_.tta_pipeline[0],
    dict(
        type="TestTimeAug",
        transforms=[
            steps
            for steps in _base_.tta_pipeline[1]["transforms"]
            if steps[0]["type"] != "CheckedLoadAnnotations"
        ],
    ),
]
test_dataloader = dict(
    dataset=dict(ann_file="ImageSets/Segmentation/test.txt", pipeline=test_pipeline)
)
test_evaluator = dict(
    format_only=True,
    output_dir="work_dirs/ea_r101_voc_finetune_15k/results/VOC2012/Segmentation/comp6_test_cls",
)
